// Shows the log of one worker, or of several merged by time, while it grows. The server sends pieces
// [offset, text, rank, time, attempt]: a line with its end, or a part of one. A position has an offset for
// each worker. Pieces go to the page in order; after a cut the stream goes on at the next position.
//
// The page holds a window of at most MOST_LINES lines. It follows the end, until the reader scrolls up
// (then new lines are added below and counted) or jumps elsewhere (then the window is away from the end
// and new lines are only counted).

const MOST_LINES = 20_000;
const LONGEST_LINE = 50_000; // characters
const NEAR_END = 30; // pixels

const root = document.querySelector("[data-log]");
const $ = (name) => root.querySelector(`[data-log-${name}]`);
const view = $("view");
const list = $("lines");
const ranks = root.dataset.ranks; // "3", or "0-7"
const firstRank = Number(ranks.split("-")[0]);
const isMerged = ranks.includes("-");

let source = null;
let next = null; // position at which the stream goes on; null before the first event
let shownEnd = null; // position after the last line of the window
let following = true;
let atTail = true; // the window reaches to where the stream is
let unseen = 0;
let ended = false;
let retry = 0;
let retryTimer = 0;
let pending = []; // pieces that came since the last frame
let chosen = null; // the line that the address names

const positionFrom = (text) => String(text).split(".").map(Number);

// --- one line ----------------------------------------------------------------------------------
const ESCAPES = /\x1b\[([0-9;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -~]?/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

// Colours of 256 and of 24 bits become the nearest of the eight that are readable in light and dark.
function nearest8(red, green, blue) {
  const most = Math.max(red, green, blue);
  if (most < 64) return "black";
  return COLOURS[(red > 0.6 * most) | ((green > 0.6 * most) << 1) | ((blue > 0.6 * most) << 2)];
}

const level = (step) => (step === 0 ? 0 : 55 + 40 * step);

function colourOf256(code) {
  if (code < 16) return COLOURS[code % 8];
  if (code >= 232) return "white";
  const cube = code - 16;
  return nearest8(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

function classesAfter(text, style) {
  const codes = text === "" ? [0] : text.split(";").map(Number);
  while (codes.length > 0) {
    const code = codes.shift();
    if (code === 0) style = {};
    else if (code === 1) style = { ...style, bold: true };
    else if (code === 2) style = { ...style, dim: true };
    else if (code === 3) style = { ...style, italic: true };
    else if (code === 4) style = { ...style, underline: true };
    else if (code === 22) style = { ...style, bold: false, dim: false };
    else if (code === 23) style = { ...style, italic: false };
    else if (code === 24) style = { ...style, underline: false };
    else if (code >= 30 && code <= 37) style = { ...style, colour: COLOURS[code - 30] };
    else if (code >= 90 && code <= 97) style = { ...style, colour: COLOURS[code - 90] };
    else if (code === 39) style = { ...style, colour: undefined };
    else if (code === 38 || code === 48) {
      const kind = codes.shift();
      const [red, green, blue] = codes.splice(0, kind === 5 ? 1 : kind === 2 ? 3 : 0);
      if (code === 38 && kind === 5) style = { ...style, colour: colourOf256(red) };
      if (code === 38 && kind === 2) style = { ...style, colour: nearest8(red, green, blue) };
    }
  }
  return style;
}

const classNames = ({ bold, dim, italic, underline, colour }) =>
  [bold && "ansi-bold", dim && "ansi-dim", italic && "ansi-italic", underline && "ansi-underline", colour && `ansi-${colour}`].filter(Boolean).join(" ");
// A control character is shown by its picture, so that nothing in a log can hide or move anything.
const visible = (text) =>
  text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (c) => (c === "\x7f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));

// A carriage return goes back to the start of the line: only what was written last is seen.
function withoutOverwritten(raw) {
  const overwritten = raw.replace(/[\r\n]+$/, "").lastIndexOf("\r");
  return overwritten >= 0 ? raw.slice(overwritten + 1) : raw;
}

function paint(item) {
  const text = item.raw.replace(/\r*\n?$/, "");
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
const two = (number) => String(number).padStart(2, "0");

function timeOf(at) {
  const time = new Date(at);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return `${day} ${clock}.${String(time.getMilliseconds()).padStart(3, "0")}`;
}

function lineOf([offset, text, rank, at, attempt]) {
  const item = document.createElement("li");
  item.raw = withoutOverwritten(text);
  item.dataset.at = offset;
  item.dataset.rank = rank;
  item.dataset.time = at > 0 ? timeOf(at) : "";
  item.dataset.clock = item.dataset.time.slice(11, 19);
  item.attempt = attempt;
  if (isMerged) item.dataset.tone = rank % 6;
  return item;
}

// Makes lines of pieces. A piece that continues a line of `lastOf`, the last line of each worker, joins it.
function build(pieces, lastOf) {
  const fragment = document.createDocumentFragment();
  const changed = new Set();
  let added = 0;
  for (const piece of pieces) {
    const last = lastOf.get(piece[2]);
    if (last && !last.raw.endsWith("\n") && last.raw.length < LONGEST_LINE) {
      last.raw = withoutOverwritten(last.raw + piece[1]);
      changed.add(last);
      continue;
    }
    const item = lineOf(piece);
    lastOf.set(piece[2], item);
    fragment.append(item);
    changed.add(item);
    added += 1;
  }
  changed.forEach(paint);
  return { fragment, added };
}

// The last line of each worker, if it is near the end of the window: lines that are not finished are.
function lastLines() {
  const lastOf = new Map();
  const most = isMerged ? 500 : 1;
  let item = list.lastElementChild;
  for (let count = 0; item && count < most; count += 1, item = item.previousElementSibling) {
    const rank = Number(item.dataset.rank);
    if (!lastOf.has(rank)) lastOf.set(rank, item);
  }
  return lastOf;
}

// Marks the first line of an attempt, where the line before it is there, too.
function markAttempts(from) {
  for (let item = from; item; item = item.nextElementSibling) {
    const before = item.previousElementSibling;
    if (before && item.attempt > 0 && before.attempt !== item.attempt) item.dataset.attempt = `Attempt ${item.attempt}`;
    else delete item.dataset.attempt;
  }
}

function append(pieces) {
  const last = list.lastElementChild;
  const { fragment, added } = build(pieces, lastLines());
  list.append(fragment);
  markAttempts(last ? last.nextElementSibling : list.firstElementChild);
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
  shownEnd = next.slice();
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

// The position before the first line of the window. A worker without a line in the window begins where it ends.
function shownBegin() {
  const begin = shownEnd.slice();
  const known = new Set();
  for (const item of list.children) {
    const rank = Number(item.dataset.rank);
    if (known.has(rank)) continue;
    begin[rank - firstRank] = Number(item.dataset.at);
    known.add(rank);
    if (known.size === begin.length) break;
  }
  return begin;
}

function showEdges() {
  $("earlier").hidden = list.children.length === 0 || shownBegin().every((offset) => offset === 0);
  $("later").hidden = atTail;
  $("empty").hidden = list.children.length > 0 || source === null;
}

// Whether the last line of the log is in view.
const endInView = () => atTail && view.scrollHeight - view.scrollTop - view.clientHeight < NEAR_END;

function showJump() {
  const jump = $("jump");
  jump.hidden = following || endInView();
  if (jump.hidden) unseen = 0;
  const lines = unseen === 1 ? "1 new line" : `${unseen} new lines`;
  jump.querySelector("span").textContent = unseen > 0 ? `${lines} – jump to the end` : "Jump to the end";
}

view.addEventListener("scroll", () => {
  following = endInView();
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
  const { begin, pieces } = await fetchPiece({ end: shownBegin().join(".") });
  const before = view.scrollHeight - view.scrollTop;
  const first = list.firstElementChild;
  list.prepend(build(pieces, new Map()).fragment);
  markAttempts(list.firstElementChild);
  while (list.children.length > 2 * MOST_LINES && list.lastElementChild !== first) {
    const last = list.lastElementChild;
    shownEnd[Number(last.dataset.rank) - firstRank] = Number(last.dataset.at);
    last.remove();
    atTail = false;
  }
  following = false;
  showEdges();
  if (positionFrom(begin).every((offset) => offset === 0)) $("earlier").hidden = true;
  view.scrollTop = view.scrollHeight - before;
  showJump();
});

$("later").addEventListener("click", async () => {
  const { end, pieces } = await fetchPiece({ begin: shownEnd.join(".") });
  append(pieces);
  shownEnd = positionFrom(end);
  meetStream();
  const top = list.lastElementChild.getBoundingClientRect().top;
  const last = list.lastElementChild;
  trim();
  view.scrollTop += last.getBoundingClientRect().top - top;
  showEdges();
  showJump();
});

// Once the window reaches to where the stream is, new lines go on below it.
function meetStream() {
  if (atTail || next === null || shownEnd.some((offset, index) => offset < next[index])) return;
  atTail = true;
  unseen = 0;
  pending = [];
  if (shownEnd.some((offset, index) => offset > next[index])) {
    close();
    next = shownEnd.slice();
    open();
  }
}

async function fetchPiece(where) {
  const response = await fetch(`${root.dataset.piece}?${new URLSearchParams({ ranks, ...where })}`);
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
  next = shownEnd = null;
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
  // Where the window is elsewhere, nothing is shown of the stream until the reader goes to the end.
  const where = next !== null ? { offset: next.join(".") } : atTail ? {} : { offset: "end" };
  const mine = new EventSource(`${root.dataset.stream}?${new URLSearchParams({ ranks, ...where })}`);
  source = mine;
  mine.addEventListener("start", (event) => {
    retry = 0;
    next = positionFrom(JSON.parse(event.data).offset);
    shownEnd ??= next.slice();
    meetStream();
    show("live", "Live");
    showEdges();
  });
  mine.addEventListener("message", (event) => {
    const { pieces } = JSON.parse(event.data);
    const fresh = pieces.filter(([offset, , rank]) => offset >= next[rank - firstRank]);
    next = positionFrom(event.lastEventId);
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
const NOTHING = { key: "", lines: [], next: null, index: -1 };
let found = NOTHING;

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
  if (!same || past < 0 || past >= found.lines.length) {
    // At the end of a part of the log its next part; else anew, as the log may have grown.
    const goesOn = same && past >= found.lines.length && found.next !== null;
    const where = goesOn ? { ...query, from: found.next } : query;
    const response = await fetch(`${root.dataset.searchUrl}?${new URLSearchParams({ ranks, ...where })}`);
    const answer = await response.json();
    if (!response.ok) {
      forget();
      say(answer.problem ?? "The search failed. Try again.");
      return;
    }
    const lines = goesOn ? [...found.lines, ...answer.lines] : answer.lines;
    let index = 0;
    if (!same) index = nearest(lines);
    else if (past < 0 || (goesOn && past >= lines.length)) index = lines.length - 1;
    else if (past < lines.length) index = past;
    found = { key, lines, next: answer.next, index: lines.length === 0 ? -1 : index };
  } else {
    found.index = past;
  }
  const isCut = found.next !== null && found.index >= found.lines.length - 1;
  say(isCut ? "The search has not reached the end of the log. Press Enter to continue it." : "");
  found.pattern = patternOf(query);
  markMatches();
  const total = `${found.lines.length}${found.next === null ? "" : "+"}`;
  $("count").textContent = found.lines.length === 0 ? "No match" : `${found.index + 1} of ${total}`;
  root.querySelector('[data-log-step="-1"]').disabled = found.lines.length < 2;
  if (found.lines.length > 0) choose(await goTo(...found.lines[found.index]));
}

// The search as a JavaScript pattern; null for a regular expression that only the server (RE2) understands.
function patternOf({ q, regex }) {
  try {
    return new RegExp(regex === "1" ? q.replace(/^\(\?i\)/, "") : q.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "giu");
  } catch {
    return null;
  }
}

// Marks all matches in the lines in view, by ranges: neither lines nor their colours change.
function markMatches() {
  if (!CSS.highlights) return;
  const ranges = found.pattern ? linesInView().flatMap((line) => rangesIn(line, found.pattern)) : [];
  CSS.highlights.set("log-match", new Highlight(...ranges));
}

function linesInView() {
  const { top, bottom } = view.getBoundingClientRect();
  let [low, high] = [0, list.children.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list.children[middle].getBoundingClientRect().bottom < top) low = middle + 1;
    else high = middle;
  }
  const lines = [];
  for (let line = list.children[low]; line && line.getBoundingClientRect().top <= bottom; line = line.nextElementSibling) lines.push(line);
  return lines;
}

function rangesIn(line, pattern) {
  const nodes = []; // [text node, where its text begins in the line]
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  let length = 0;
  while (walker.nextNode()) {
    nodes.push([walker.currentNode, length]);
    length += walker.currentNode.length;
  }
  const place = (at) => {
    const [node, begin] = nodes.findLast(([, begin]) => begin <= at);
    return [node, at - begin];
  };
  return [...line.textContent.matchAll(pattern)]
    .filter(([text]) => text !== "")
    .map(({ 0: text, index }) => {
      const range = new Range();
      range.setStart(...place(index));
      range.setEnd(...place(index + text.length));
      return range;
    });
}

let isMarking = false;
function markSoon() {
  if (isMarking || !found.pattern) return;
  isMarking = true;
  requestAnimationFrame(() => {
    isMarking = false;
    markMatches();
  });
}
view.addEventListener("scroll", markSoon);
new MutationObserver(markSoon).observe(list, { childList: true, subtree: true });

// The match in the chosen line; else the first one that the reader sees, or the first one after it.
function nearest(lines) {
  const isChosen = ([rank, offset]) => String(rank) === chosen?.dataset.rank && offset === Number(chosen.dataset.at);
  const at = lines.findIndex(isChosen);
  if (at >= 0) return at;
  const top = view.getBoundingClientRect().top;
  const seen = [...list.children].find((item) => item.getBoundingClientRect().bottom > top);
  const isFrom = ([rank, offset]) => String(rank) === seen?.dataset.rank && offset >= Number(seen.dataset.at);
  return Math.max(0, lines.findIndex(isFrom));
}

// The line of a worker that contains the byte `offset`, if the window has it.
function lineAt(rank, offset) {
  let line = null;
  for (const item of list.querySelectorAll(`[data-rank="${rank}"]`)) {
    if (Number(item.dataset.at) > offset) return line;
    line = item;
  }
  return line !== null && offset < shownEnd[rank - firstRank] ? line : null;
}

async function goTo(rank, offset) {
  let line = lineAt(rank, offset);
  if (!line) {
    const { pieces, end } = await fetchPiece({ around: offset, of: rank });
    list.replaceChildren(build(pieces, new Map()).fragment);
    markAttempts(list.firstElementChild);
    shownEnd = positionFrom(end);
    atTail = false;
    line = lineAt(rank, offset);
    meetStream();
    showEdges();
  }
  following = false;
  line?.scrollIntoView({ block: "center" });
  showJump();
  return line;
}

// --- the address of a line: its worker and its offset, which never change ------------------------
function choose(line) {
  list.querySelector(".log-found")?.classList.remove("log-found");
  line?.classList.add("log-found");
  chosen = line;
  $("link").disabled = !line;
  const address = new URL(location.href);
  address.searchParams.set("ranks", ranks);
  for (const name of ["rank", "line", "q", "regex"]) address.searchParams.delete(name);
  if (found.key !== "") {
    const { q, regex } = JSON.parse(found.key);
    address.searchParams.set("q", q);
    if (regex === "1") address.searchParams.set("regex", regex);
  }
  if (line) {
    address.searchParams.set("rank", line.dataset.rank);
    address.searchParams.set("line", line.dataset.at);
  }
  history.replaceState(history.state, "", address);
}

list.addEventListener("click", (event) => {
  const line = event.target.closest("li");
  if (line && getSelection().isCollapsed) choose(line === chosen ? null : line);
});

view.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return choose(null);
  if (event.key === "Enter" && event.target === view) {
    const top = view.getBoundingClientRect().top;
    choose([...list.children].find((item) => item.getBoundingClientRect().top >= top) ?? null);
    event.preventDefault();
  } else if (chosen && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const line = event.key === "ArrowDown" ? chosen.nextElementSibling : chosen.previousElementSibling;
    if (line) choose(line);
    line?.scrollIntoView({ block: "nearest" });
    event.preventDefault();
  }
});

$("link").addEventListener("click", async () => {
  await navigator.clipboard.writeText(location.href);
  const label = $("link").querySelector("span");
  label.textContent = "Copied";
  setTimeout(() => (label.textContent = "Copy link"), 1500);
});

$("attempts")?.addEventListener("change", async (event) => {
  if (event.target.value !== "") choose(await goTo(firstRank, Number(event.target.value)));
});

// Over the log, not in the bar: whatever its length, nothing moves.
function say(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = problem === "";
}

function forget() {
  say("");
  found = NOTHING;
  markMatches();
  choose(null);
  $("count").textContent = "";
  root.querySelector('[data-log-step="-1"]').disabled = true;
}

// --- how lines look ------------------------------------------------------------------------------
function toggles(button, className) {
  button.addEventListener("click", () => button.setAttribute("aria-pressed", list.classList.toggle(className)));
}

toggles($("wrap"), "wraps");
toggles($("times"), "timed");

// A line of the address that the log does not have leaves the reader at the end. A search of the address goes on from it.
const asked = new URL(location.href).searchParams;
if (root.dataset.line !== "") choose(await goTo(Number(root.dataset.lineRank), Number(root.dataset.line)).catch(() => null));
open();
if (asked.get("q")) {
  const { elements } = root.querySelector("[data-log-search]");
  elements.q.value = asked.get("q");
  elements.regex.checked = asked.get("regex") === "1";
  step(1);
}
