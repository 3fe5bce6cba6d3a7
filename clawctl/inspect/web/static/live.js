// Keeps a page as the run is. It asks the server for the same page, and gets an answer when something has changed.
"use strict";

const AGES_MS = 60_000; // after this time the page is read again for the ages on it, such as "2 min ago"
const AGAIN_MS = 3000; // between attempts to reach the server

const idOf = (node) => (node.getAttribute && node.getAttribute("id")) || ""; // `form.id` may be a field of that name

/** Make `old` like `now`. What a person opened, typed or focused stays. */
function become(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || idOf(old) !== idOf(now)) return old.replaceWith(now);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== now.data) old.data = now.data;
    return;
  }
  if (old.isEqualNode(now) || "still" in old.dataset) return;
  const isChart = old.classList.contains("chart");
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open" && !isChart) old.removeAttribute(name);
  for (const { name, value } of [...now.attributes]) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (!isChart) children(old, now);
}

/** Children with an id are found again wherever they stand now; the others by their place. */
function children(old, now) {
  let next = old.firstChild;
  for (const child of [...now.childNodes]) {
    const id = idOf(child);
    const same = id && [...old.children].find((other) => idOf(other) === id);
    if (same && same !== next) old.insertBefore(same, next);
    else if (!next || (!same && (id || idOf(next)))) {
      old.insertBefore(child, next);
      continue;
    }
    const place = same || next;
    next = place.nextSibling;
    become(place, child);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const isShown = () => new Promise((resolve) => (document.hidden ? document.addEventListener("visibilitychange", resolve, { once: true }) : resolve()));

async function follow(main, lost) {
  let made = performance.now();
  for (;;) {
    await isShown();
    try {
      const headers = performance.now() - made < AGES_MS ? { "If-None-Match": main.dataset.stamp } : {};
      const asked = location.href;
      const answer = await fetch(asked, { headers, cache: "no-store" });
      lost.textContent = "";
      if (answer.status === 304 || asked !== location.href) continue;
      if (!answer.headers.has("ETag")) {
        lost.textContent = "This page does not follow the run any more. Reload it; if the server was restarted, open its new link.";
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      become(main, page.getElementById("main"));
      become(document.querySelector("footer"), page.querySelector("footer"));
      made = performance.now();
      dispatchEvent(new Event("followed"));
    } catch {
      lost.textContent = "The server does not answer. This page is as it was when it last did.";
      await pause(AGAIN_MS);
    }
  }
}

if (document.querySelector("main[data-stamp]")) follow(document.getElementById("main"), document.querySelector(".lost"));
