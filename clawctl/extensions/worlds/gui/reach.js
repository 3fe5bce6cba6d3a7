// Returns the point to click on an element, or why the element cannot be used. "type" also selects its text, "select" an option.
([number, name, text]) => {
  const element = (window.__clawctl_elements || [])[number - 1];
  if (!element) return { missing: true };
  const list = element.tagName === "SELECT" ? [...element.options] : [];
  const squeeze = (words) => words.replace(/\s+/g, " ").trim();
  if (!element.isConnected) return { problem: "it is gone" };
  if (element.disabled) return { problem: "it is disabled" };
  if (name === "select") {
    if (element.tagName !== "SELECT") return { problem: "it is no list" };
    const option = list.find((each) => squeeze(each.text) === text && !each.disabled);
    if (!option) return { problem: `it has no option ${JSON.stringify(text.slice(0, 80))}` };
    if (!element.multiple) element.value = option.value;
    option.selected = true;
    for (const kind of ["input", "change"]) element.dispatchEvent(new Event(kind, { bubbles: true }));
    return {};
  }
  element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
  const box = element.getClientRects()[0];
  if (!box || box.width <= 0 || box.height <= 0) return { problem: "it is hidden" };
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const top = document.elementFromPoint(x, y);
  const labels = element.labels ? [...element.labels] : [];
  const reached = top && (top.contains(element) || element.contains(top) || labels.some((label) => label.contains(top)));
  if (!reached) return { problem: top ? "something covers it" : "it is outside of the page" };
  if (name === "type") {
    const plain = element.matches("textarea, input") && !["checkbox", "radio", "button", "submit", "reset", "file", "image"].includes(element.type);
    if (!(plain || element.isContentEditable) || element.readOnly) return { problem: "it takes no text" };
    if (["date", "time", "datetime-local", "month", "week", "color", "range"].includes(element.type)) return { fill: true };
    element.focus();
    if (plain) element.select();
    else getSelection().selectAllChildren(element);
  }
  return { x, y, leaves: element.matches("a[href], button:not([type=button]), input[type=submit], input[type=image]") };
}
