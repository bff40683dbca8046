// Shows a job's log while it grows. The server sends pieces [offset, text]: a line with its end, or a
// part of one. Pieces go to the page in order; after a cut the stream goes on at the next offset.
//
// The page holds a window of at most MOST_LINES lines. It follows the end, until the reader scrolls up
// (then new lines are added below and counted) or jumps elsewhere (then the window is away from the end
// and new lines are only counted).

const MOST_LINES = 20_000;
const NEAR_END = 30; // pixels

const root = document.querySelector("[data-log]");
const $ = (name) => root.querySelector(`[data-log-${name}]`);
const view = $("view");
const list = $("lines");
const rank = root.dataset.rank;

let source = null;
let next = null; // offset at which the stream goes on; null before the first event
let following = true;
let atTail = true; // the window reaches to where the stream is
let unseen = 0;
let ended = false;
let retry = 0;
let retryTimer = 0;
let pending = []; // pieces that came since the last frame

// --- one line ----------------------------------------------------------------------------------
const ESCAPES = /\x1b\[([0-9;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -~]?/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

function classesAfter(codes, style) {
  for (const code of codes === "" ? [0] : codes.split(";").map(Number)) {
    if (code === 0) style = {};
    else if (code === 1) style = { ...style, bold: true };
    else if (code === 2) style = { ...style, dim: true };
    else if (code === 4) style = { ...style, underline: true };
    else if (code === 22) style = { ...style, bold: false, dim: false };
    else if (code === 24) style = { ...style, underline: false };
    else if (code >= 30 && code <= 37) style = { ...style, colour: COLOURS[code - 30] };
    else if (code >= 90 && code <= 97) style = { ...style, colour: COLOURS[code - 90] };
    else if (code === 39) style = { ...style, colour: undefined };
  }
  return style;
}

const classNames = ({ bold, dim, underline, colour }) =>
  [bold && "ansi-bold", dim && "ansi-dim", underline && "ansi-underline", colour && `ansi-${colour}`].filter(Boolean).join(" ");
// A control character is shown by its picture, so that nothing in a log can hide or move anything.
const visible = (text) =>
  text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (c) => (c === "\x7f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));

function paint(item) {
  let text = item.raw.replace(/\r?\n$/, "");
  const overwritten = text.replace(/\r+$/, "").lastIndexOf("\r");
  if (overwritten >= 0) text = text.slice(overwritten + 1); // a progress bar's last word
  text = text.replace(/\r+$/, "");
  if (!text.includes("\x1b")) {
    item.textContent = visible(text);
    return;
  }
  item.replaceChildren();
  let style = {};
  let from = 0;
  const add = (part) => {
    if (part === "") return;
    const names = classNames(style);
    if (names === "") return item.append(visible(part));
    const span = document.createElement("span");
    span.className = names;
    span.textContent = visible(part);
    item.append(span);
  };
  for (const match of text.matchAll(ESCAPES)) {
    add(text.slice(from, match.index));
    if (match[1] !== undefined) style = classesAfter(match[1], style);
    from = match.index + match[0].length;
  }
  add(text.slice(from));
}

// --- the window of lines -----------------------------------------------------------------------
function build(pieces, last) {
  const fragment = document.createDocumentFragment();
  let added = 0;
  for (const [offset, text] of pieces) {
    if (last && !last.raw.endsWith("\n") && last.raw.length < 50_000) {
      last.raw += text;
    } else {
      last = document.createElement("li");
      last.raw = text;
      last.dataset.at = offset;
      fragment.append(last);
      added += 1;
    }
  }
  for (const item of [...fragment.children]) paint(item);
  return { fragment, added };
}

function append(pieces) {
  const last = list.lastElementChild;
  const { fragment, added } = build(pieces, last);
  if (last) paint(last);
  list.append(fragment);
  return added;
}

function flush() {
  const pieces = pending;
  pending = [];
  if (pieces.length === 0) return;
  if (!atTail) {
    unseen += pieces.filter(([, text]) => text.endsWith("\n")).length;
    showJump();
    return;
  }
  const added = append(pieces);
  if (following) trim();
  showEdges(); // before scrolling: its button moves the end
  if (following) {
    view.scrollTop = view.scrollHeight;
  } else {
    unseen += added;
    if (list.children.length > 2 * MOST_LINES) atTail = false; // the reader stays where the window is
  }
  showJump();
}

function trim() {
  while (list.children.length > MOST_LINES) list.firstElementChild.remove();
}

const firstOffset = () => Number(list.firstElementChild?.dataset.at ?? 0);

function showEdges() {
  $("earlier").hidden = list.children.length === 0 || firstOffset() === 0;
  $("later").hidden = atTail;
  $("empty").hidden = list.children.length > 0 || source === null;
}

function showJump() {
  const jump = $("jump");
  jump.hidden = following;
  if (following) unseen = 0;
  const lines = unseen === 1 ? "1 new line" : `${unseen} new lines`;
  jump.querySelector("span").textContent = unseen > 0 ? `${lines} – jump to the end` : "Jump to the end";
}

view.addEventListener("scroll", () => {
  const near = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR_END;
  following = atTail && near;
  showJump();
});

$("jump").addEventListener("click", () => {
  following = true;
  if (atTail) {
    trim();
    view.scrollTop = view.scrollHeight;
    showJump();
  } else {
    restart();
  }
});

$("earlier").addEventListener("click", async () => {
  const { begin, pieces } = await fetchPiece({ end: firstOffset() });
  const before = view.scrollHeight - view.scrollTop;
  const { fragment } = build(pieces, null);
  list.prepend(fragment);
  while (list.children.length > 2 * MOST_LINES) {
    list.lastElementChild.remove();
    atTail = false;
  }
  following = false;
  showEdges();
  if (begin === 0) $("earlier").hidden = true;
  view.scrollTop = view.scrollHeight - before;
  showJump();
});

$("later").addEventListener("click", async () => {
  const last = list.lastElementChild; // may be cut: it comes again, whole
  const { pieces } = await fetchPiece({ begin: last.dataset.at });
  const { fragment } = build(pieces, null);
  const top = last.getBoundingClientRect().top;
  last.replaceWith(fragment);
  const twin = list.querySelector(`[data-at="${last.dataset.at}"]`);
  trim();
  if (twin) view.scrollTop += twin.getBoundingClientRect().top - top;
  showEdges();
});

async function fetchPiece(where) {
  const response = await fetch(`${root.dataset.piece}?${new URLSearchParams({ rank, ...where })}`);
  if (!response.ok) throw new Error(`the log answered ${response.status}`);
  return response.json();
}

// --- the stream --------------------------------------------------------------------------------
function show(state, words) {
  const sign = $("state");
  sign.dataset.state = state;
  if (sign.textContent !== words) sign.textContent = words;
}

function restart() {
  close();
  list.replaceChildren();
  pending = [];
  next = null;
  atTail = true;
  following = true;
  ended = false;
  open();
}

function close() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function open() {
  if (source || ended || document.hidden) return;
  const where = next === null ? {} : { offset: next };
  const mine = new EventSource(`${root.dataset.stream}?${new URLSearchParams({ rank, ...where })}`);
  source = mine;
  mine.addEventListener("start", (event) => {
    retry = 0;
    next = JSON.parse(event.data).offset;
    show("live", "Live");
    showEdges();
  });
  mine.addEventListener("message", (event) => {
    const { pieces } = JSON.parse(event.data);
    const fresh = pieces.filter(([offset]) => offset >= next);
    next = Number(event.lastEventId);
    if (pending.length === 0) requestAnimationFrame(flush);
    pending.push(...fresh);
  });
  mine.addEventListener("bye", () => {
    close(); // its time was up
    open();
  });
  mine.addEventListener("end", () => {
    ended = true;
    close();
    flush();
    show("ended", "Complete");
    $("empty").hidden = list.children.length > 0;
  });
  mine.addEventListener("problem", (event) => {
    ended = true; // asking again would be answered the same
    close();
    show("away", "Unreadable");
    say(JSON.parse(event.data).problem);
  });
  mine.addEventListener("error", () => {
    if (source !== mine) return;
    close();
    retry = Math.min(retry + 1, 6);
    show("away", "Reconnecting");
    retryTimer = setTimeout(open, Math.random() * 300 * 2 ** retry + 300);
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
    if (!ended) show("away", "Paused");
  } else {
    open();
  }
});
window.addEventListener("pagehide", close);
window.addEventListener("online", open);

// --- search: the server looks through the whole log, the window goes where the match is ---------
// One search is bounded: `next` is where the following one goes on, null when the whole log was searched.
let found = { key: "", offsets: [], next: null, index: -1 };

root.querySelector("[data-log-search]").addEventListener("submit", (event) => {
  event.preventDefault();
  step(1);
});
root.querySelector("[data-log-search]").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.shiftKey) {
    event.preventDefault();
    step(-1);
  }
});
root.querySelector("[data-log-search]").addEventListener("input", () => say(""));
root.querySelector('[data-log-step="-1"]').addEventListener("click", () => step(-1));

async function step(direction) {
  const form = root.querySelector("[data-log-search]");
  const query = { q: form.elements.q.value, regex: form.elements.regex.checked ? "1" : "0" };
  const key = JSON.stringify(query);
  if (query.q === "") return forget();
  const past = found.index + direction;
  const same = key === found.key;
  if (!same || past < 0 || past >= found.offsets.length) {
    // At the end of a part of the log its next part; else anew, as the log may have grown.
    const goesOn = same && past >= found.offsets.length && found.next !== null;
    const where = { ...query, from: goesOn ? found.next : 0 };
    const response = await fetch(`${root.dataset.searchUrl}?${new URLSearchParams({ rank, ...where })}`);
    const answer = await response.json();
    if (!response.ok) {
      forget();
      say(answer.problem ?? "The search failed. Try again.");
      return;
    }
    const offsets = goesOn ? [...found.offsets, ...answer.offsets] : answer.offsets;
    let index = 0;
    if (!same) index = nearest(offsets);
    else if (past < 0 || (goesOn && past >= offsets.length)) index = offsets.length - 1;
    else if (past < offsets.length) index = past;
    found = { key, offsets, next: answer.next, index: offsets.length === 0 ? -1 : index };
  } else {
    found.index = past;
  }
  const isCut = found.next !== null && found.index >= found.offsets.length - 1;
  say(isCut ? `Searched the log up to byte ${found.next.toLocaleString("en")}. Press Enter to continue the search.` : "");
  const total = `${found.offsets.length}${found.next === null ? "" : "+"}`;
  $("count").textContent = found.offsets.length === 0 ? "No match" : `${found.index + 1} of ${total}`;
  root.querySelector('[data-log-step="-1"]').disabled = found.offsets.length < 2;
  if (found.offsets.length > 0) await goTo(found.offsets[found.index]);
}

// The first match that the reader sees, or the first one after it.
function nearest(offsets) {
  const top = view.getBoundingClientRect().top;
  const line = [...list.children].find((item) => item.getBoundingClientRect().bottom > top);
  const index = offsets.findIndex((offset) => offset >= Number(line?.dataset.at ?? 0));
  return index >= 0 ? index : 0;
}

async function goTo(offset) {
  let line = list.querySelector(`[data-at="${offset}"]`);
  if (!line) {
    const { pieces } = await fetchPiece({ around: offset });
    list.replaceChildren(build(pieces, null).fragment);
    atTail = false;
    line = list.querySelector(`[data-at="${offset}"]`);
    showEdges();
  }
  list.querySelector(".log-found")?.classList.remove("log-found");
  line?.classList.add("log-found");
  following = false;
  line?.scrollIntoView({ block: "center" });
  showJump();
}

// Over the log, not in the bar: whatever its length, nothing moves.
function say(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = problem === "";
}

function forget() {
  say("");
  found = { key: "", offsets: [], next: null, index: -1 };
  list.querySelector(".log-found")?.classList.remove("log-found");
  $("count").textContent = "";
  root.querySelector('[data-log-step="-1"]').disabled = true;
}

// --- wrap --------------------------------------------------------------------------------------
$("wrap").addEventListener("click", (event) => {
  const wraps = list.classList.toggle("wraps");
  event.currentTarget.setAttribute("aria-pressed", wraps);
});

open();
