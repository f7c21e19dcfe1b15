"use strict";
// Asks for this page again and puts its content in place when it has changed; focus and scroll positions stay.
(() => {
  const PAUSE_MS = 2000;
  const status = document.getElementById("live");
  let tag = null;

  const say = (text) => {
    if (status.textContent !== text) status.textContent = text;
  };
  const scrolled = () => [...document.querySelectorAll("#content .scroll")];

  const replace = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("content");
    const old = document.getElementById("content");
    if (!fresh || !old) return;
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    const at = focus ? [...old.querySelectorAll(focus.tagName)].indexOf(focus) : -1;
    const href = focus && focus.getAttribute("href");
    const lefts = scrolled().map((each) => each.scrollLeft);
    old.replaceWith(fresh);
    scrolled().forEach((each, n) => { each.scrollLeft = lefts[n] || 0; });
    if (focus) {
      const same = [...fresh.querySelectorAll(focus.tagName)];
      const next = same.find((each) => href && each.getAttribute("href") === href) || same[at];
      if (next) next.focus({ preventScroll: true });
    }
  };

  const update = async () => {
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store" });
      if (answer.status !== 304) {
        tag = answer.headers.get("ETag");
        replace(await answer.text());
      }
      say(answer.ok || answer.status === 304 ? "Updating" : "The cluster cannot be asked");
    } catch {
      say("The server does not answer; the page is not up to date");
    }
    setTimeout(update, document.hidden ? 5 * PAUSE_MS : PAUSE_MS);
  };
  setTimeout(update, PAUSE_MS);
})();
