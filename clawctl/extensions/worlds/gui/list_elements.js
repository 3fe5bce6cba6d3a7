// The visible page as lines of text in document order. Keeps the numbered elements for reach.js.
(hidden) => {
  const lines = [], elements = [];
  let line = "";
  const squeeze = (text) => (text || "").replace(/\s+/g, " ").trim();
  const short = (text) => { const all = squeeze(text); return all.length > 120 ? all.slice(0, 117) + "..." : all; };
  const quote = (text) => JSON.stringify(short(text));
  const end = () => { if (squeeze(line)) lines.push(squeeze(line)); line = ""; };
  const fields = "input, select, textarea, [contenteditable=''], [contenteditable=true]";
  const roles = "[role=button], [role=link], [role=checkbox], [role=radio], [role=tab], [role=option], [role=menuitem]";
  const usable = `a[href], a[onclick], button, summary, ${fields}, ${roles}`;
  const listens = window.__clawctl_listens || new WeakSet();

  const isVisible = (element) => {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility !== "visible" || Number(style.opacity) === 0) return false;
    if (style.display === "contents") return true;
    const box = element.getBoundingClientRect();
    return (box.width > 0 && box.height > 0) || style.overflow === "visible";
  };
  const hasBox = (element) => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const isClickable = (element) => listens.has(element) || element.onclick !== null && element.onclick !== undefined ||
    (getComputedStyle(element).cursor === "pointer" && getComputedStyle(element.parentElement || element).cursor !== "pointer");
  const isShape = (element) => element instanceof SVGGeometryElement || element instanceof SVGTextContentElement;

  const wordsOf = (label) => {  // without the text of fields inside the label
    const copy = label.cloneNode(true);
    for (const inner of copy.querySelectorAll(fields)) inner.remove();
    return copy.textContent;
  };

  const labelOf = (element) => {
    const told = element.getAttribute("aria-label");
    if (told) return told;
    if (element.labels && element.labels.length) {
      return [...element.labels].map(wordsOf).join(" ") || element.value;
    }
    return element.getAttribute("placeholder") || element.getAttribute("title") || "";
  };

  const describe = (element) => {
    const tag = element.tagName.toLowerCase(), type = (element.type || "").toLowerCase();
    const off = element.disabled ? " (disabled)" : "";
    if (tag === "input" && ["button", "submit", "reset", "image"].includes(type)) return `button ${quote(element.value || element.alt)}${off}`;
    if (tag === "input" && ["checkbox", "radio"].includes(type)) {
      return `${type} ${quote(labelOf(element))}${element.checked ? " (checked)" : ""}${off}`;
    }
    if (tag === "select") {
      const options = [...element.options].slice(0, 50).map((option) => short(option.text)).join(" | ");
      const chosen = [...element.selectedOptions].map((option) => quote(option.text)).join(", ");
      return `list ${quote(labelOf(element))} options: ${options}; chosen: ${chosen || "none"}${off}`;
    }
    if (tag === "input" || tag === "textarea") {
      const what = type === "password" ? "password field" : ["text", "textarea", ""].includes(type) ? "field" : `${type} field`;
      return `${what} ${quote(labelOf(element))}${element.value ? ` contains ${quote(element.value)}` : ""}${off}`;
    }
    if (element.isContentEditable) return `field ${quote(labelOf(element))} contains ${quote(element.innerText)}`;
    if (tag === "summary") return `${element.parentElement.open ? "open" : "closed"} section ${quote(element.innerText)}`;
    const what = tag === "a" || element.getAttribute("role") === "link" ? "link" : tag === "button" ? "button" : element.getAttribute("role") || tag;
    const colour = isShape(element) ? ` ${element.getAttribute("fill") || element.style.fill || ""}` : "";
    return `${what}${colour} ${quote(element.innerText || element.textContent || element.getAttribute("aria-label") || element.title || element.getAttribute("class"))}${off}`;
  };

  const add = (element) => { end(); elements.push(element); lines.push(`[${elements.length}] ${describe(element)}`); };

  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) { line += node.textContent; return; }
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(hidden) || !isVisible(node)) return;
    if (node.matches("script, style, noscript, template, head, title")) return;
    const field = node.matches(fields) && !(node.type === "hidden");
    const named = node.matches(usable) || (node !== document.body && isClickable(node)) || isShape(node);
    const parts = node instanceof SVGSVGElement ? "*" : usable;
    if (field || (named && hasBox(node) && !node.querySelector(parts))) { add(node); return; }
    if (node.tagName === "LABEL" && node.control && isVisible(node.control)) {
      if (node.contains(node.control)) walk(node.control);  // the label's text is part of the field's line
      return;
    }
    const block = !getComputedStyle(node).display.startsWith("inline");
    if (block || node.tagName === "BR") end();
    if (node.tagName === "TD" || node.tagName === "TH") line += " ";
    const isClosed = node.tagName === "DETAILS" && !node.open;  // its content still has a box
    for (const child of node.childNodes) if (!isClosed || child === node.querySelector(":scope > summary")) walk(child);
    if (node.shadowRoot) for (const child of node.shadowRoot.childNodes) walk(child);
    if (block) end(); else line += node.matches("td, th") ? " | " : "";
  };
  if (document.body) walk(document.body);
  end();
  Object.defineProperty(window, "__clawctl_elements", { value: elements, configurable: true });
  return lines;
}
