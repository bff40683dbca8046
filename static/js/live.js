// Keeps a page's parts fresh. Each part says what it depends on and how it is fetched:
//   <section id="x" data-live="jobs:3 cluster:1" hx-get="…" hx-trigger="refresh" hx-swap="outerMorph">
// One stream per page brings the names of topics that changed; the parts concerned are fetched anew. It goes on
// from where the news stood when the page was made, or from the last event, so that nothing is missed between.
// While the stream or its relay is away, all parts are fetched every 30 s instead. What changes without news,
// such as an amount that grows with time, says within how many seconds it is fetched: data-live-within="60".

const DEBOUNCE = 300; // ms of quiet before a refresh …
const LONGEST = 1500; // … but never later than this after the first change
const POLL = { live: 120, away: 30 }; // s

const parts = () => [...document.querySelectorAll("[data-live][id]")];
const topicsOf = (part) => part.dataset.live.split(/\s+/).filter(Boolean);
const matches = (wanted, topic) => wanted === topic || (wanted.endsWith(":*") && topic.startsWith(wanted.slice(0, -1)));

let stream = null;
let relay = null; // "live" or "away", once we know
let retry = 0;
let retryTimer = 0;
let position = document.body.dataset.liveSince ?? "";
const opened = Date.now();
const refreshed = new Map(); // part id -> when
const waiting = new Map(); // part id -> {timer, first}

function refresh(part) {
  if (document.hidden || part.classList.contains("htmx-request")) return;
  refreshed.set(part.id, Date.now());
  htmx.trigger(part, "refresh");
}

function refreshSoon(part) {
  const now = Date.now();
  const known = waiting.get(part.id) ?? { first: now };
  clearTimeout(known.timer);
  const delay = Math.max(0, Math.min(DEBOUNCE, known.first + LONGEST - now));
  known.timer = setTimeout(() => {
    const fresh = document.getElementById(part.id);
    if (fresh?.classList.contains("htmx-request")) {
      known.first = Date.now(); // one at a time; this change comes after the present answer
      waiting.set(part.id, known);
      refreshSoon(fresh);
      return;
    }
    waiting.delete(part.id);
    if (fresh) refresh(fresh);
  }, delay);
  waiting.set(part.id, known);
}

function show(state) {
  const label = { live: "Live", away: "Updates every 30 s" }[state];
  for (const sign of document.querySelectorAll("[data-live-state]")) {
    sign.hidden = false;
    sign.dataset.state = state;
    sign.textContent = label;
  }
  relay = state;
}

function open() {
  const topics = [...new Set(parts().flatMap(topicsOf))];
  if (stream || topics.length === 0 || document.hidden) return;
  const query = new URLSearchParams({ topics: topics.join(","), since: position });
  stream = new EventSource(`${document.body.dataset.liveUrl}?${query}`);
  // The relay says "live" at the start of each stream and whenever it is back, and then what was missed.
  stream.addEventListener("relay", (event) => {
    show(event.data);
    position = event.lastEventId || position;
    retry = 0;
  });
  stream.addEventListener("message", (event) => {
    position = event.lastEventId || position;
    const { topic } = JSON.parse(event.data);
    for (const part of parts()) if (topicsOf(part).some((wanted) => matches(wanted, topic))) refreshSoon(part);
  });
  stream.addEventListener("bye", () => {
    close(); // its time was up
    open();
  });
  stream.addEventListener("error", () => {
    show("away");
    close();
    retry = Math.min(retry + 1, 6);
    retryTimer = setTimeout(open, Math.random() * 500 * 2 ** retry + 500);
  });
}

function close() {
  clearTimeout(retryTimer);
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
  } else {
    open();
    parts().forEach(refreshSoon);
  }
});
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", open);
setInterval(() => {
  for (const part of parts()) {
    const within = Math.min(POLL[relay ?? "away"], Number(part.dataset.liveWithin) || Infinity);
    if (Date.now() - (refreshed.get(part.id) ?? opened) >= within * 1000) refresh(part);
  }
}, 5_000);
if (document.body.dataset.liveUrl) open();
