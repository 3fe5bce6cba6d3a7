// Sends the forms of the page Talk without leaving it, and shows an answer while it arrives. Without JavaScript, the forms work as forms.
"use strict";

const form = document.getElementById("say");
const [send, stop, status] = [".main", ".stop", ".status"].map((name) => form.querySelector(name));
let cut = null; // ends the request that is under way

const texts = new Map(); // by element: the text so far
function show(line) {
  if (line.html) {
    history.replaceState(null, "", `/talk?id=${line.talk}`);
    form.elements.id.value = line.talk;
    const page = new DOMParser().parseFromString(line.html, "text/html");
    document.getElementById("exchanges").append(...page.body.children);
    form.elements.words.value = "";
    form.scrollIntoView({ block: "nearest" });
    return;
  }
  const text = (texts.get(line.id) || "") + line.more;
  texts.set(line.id, text);
  document.getElementById(line.id).textContent = text;
  form.scrollIntoView({ block: "nearest" });
}

/** What a page of a refusal says. */
const said = (html) => [...new DOMParser().parseFromString(html, "text/html").querySelectorAll("main h1, main p")].map((one) => one.textContent.trim()).slice(0, 2).join(" ");

async function say() {
  const body = new URLSearchParams([...new FormData(form), ["stream", "yes"]]);
  cut = new AbortController();
  send.disabled = true;
  stop.hidden = false;
  status.textContent = "";
  try {
    const answer = await fetch("/say", { method: "POST", body, signal: cut.signal });
    if (!answer.ok) throw new Error(said(await answer.text()));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach((line) => show(JSON.parse(line)));
    }
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "stopped" : error.message;
  } finally {
    texts.clear();
    send.disabled = false;
    stop.hidden = true;
    form.elements.words.focus();
  }
}

async function quietly(other, button) {
  const answer = await fetch(other.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(other, button)), redirect: "manual" });
  status.textContent = answer.type === "opaqueredirect" ? "" : said(await answer.text());
  if (answer.type === "opaqueredirect") other.reset();
}

document.addEventListener("submit", (event) => {
  if (event.target === form || "quiet" in event.target.dataset) event.preventDefault();
  if (event.target === form && !send.disabled) say();
  if ("quiet" in event.target.dataset) quietly(event.target, event.submitter);
});
form.elements.words.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (event.target.value.trim()) form.requestSubmit();
});
stop.addEventListener("click", () => cut.abort());
