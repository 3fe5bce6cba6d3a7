// Labels the turns that wait on the page Judge with keys: y good, u neutral, n bad. They act on the turn that has the focus only, so that
// a key pressed elsewhere rates nothing. After a label the focus is on the next turn.
"use strict";

const RATINGS = { y: "good", u: "neutral", n: "bad" };
const focusFirst = () => location.hash === "#queue" && document.querySelector("#queue .queued button")?.focus();

addEventListener("keydown", (event) => {
  const form = event.target.closest("#queue .queued form");
  const rating = RATINGS[event.key];
  if (!form || !rating || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  event.preventDefault();
  form.querySelector(`button[value="${rating}"]`).click();
});
addEventListener("hashchange", focusFirst);
addEventListener("load", () => setTimeout(focusFirst)); // the browser goes to #queue first, and that takes the focus away
