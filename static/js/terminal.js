// A terminal in a job. xterm.js draws it; portal/terminals/talk.py says what goes over the WebSocket.
// If the connection dies, the page connects to the same shell again, which waits for it for a while. While the job does
// not run, the page waits: live.js fetches the part #job-terminal again, which says whether the job runs.

const root = document.querySelector("[data-terminal]");
const part = () => document.getElementById("job-terminal");
const jobRuns = () => part().dataset.job === "running";
const state = document.querySelector("[data-terminal-state]");
const again = document.querySelector("[data-terminal-new]");
const here = document.querySelector("[data-shell-here]"); // takes over the shell that another window has

const READ_EVERY = 64 * 1024; // bytes of output that were shown, after which the server is told
const RETRIES = [0.5, 1, 2, 4, 8, 15, 15, 15, 15]; // seconds before each try to connect again
const SILENCE = 45; // seconds without a message; the server asks {"ping"} every 15 s
const SCROLLBACK = 5000; // lines
const FONT_SIZE = 13; // pixels

// xterm.js makes style elements. The policy of this page admits those with its nonce only.
const create = document.createElement.bind(document);
document.createElement = (name, ...more) => {
  const made = create(name, ...more);
  if (name === "style") made.nonce = root.dataset.nonce;
  return made;
};

// The colours of the page, as xterm.js reads them: without variables.
const colours = () => {
  const value = (name) => {
    root.style.color = `var(${name})`;
    return getComputedStyle(root).color;
  };
  return {
    background: value("--sunken"),
    foreground: value("--text"),
    cursor: value("--text"),
    cursorAccent: value("--sunken"),
    selectionBackground: value("--accent-soft"),
    selectionForeground: value("--text"),
  };
};

const terminal = new Terminal({
  fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
  fontSize: FONT_SIZE,
  scrollback: SCROLLBACK,
  theme: colours(),
  minimumContrastRatio: 4.5,
  screenReaderMode: matchMedia("(prefers-reduced-motion: reduce)").matches,
  // Links in output are text: what a job prints opens nothing.
  linkHandler: { activate: () => {} },
});
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
root.hidden = false; // xterm.js measures letters
terminal.open(root);
fit.fit();
root.hidden = !jobRuns();
root.querySelector("textarea").setAttribute("aria-label", "Terminal");

const memory = `fairlot-terminal:${root.dataset.terminal}:${root.dataset.worker}`;
// The tab's own shell, or else one that waits for its user, unless the address says which: a key or "new".
const { wants, ended, shell } = root.dataset;
const isElsewhere = "elsewhere" in root.dataset; // another tab would lose the shell
let key = sessionStorage.getItem(memory) ?? "";
if (wants) key = wants === "new" ? "" : wants;
if (ended && key === ended) forget();
const asksFirst = !key && wants !== "new" && (Boolean(ended) || isElsewhere);
if (!key && !wants && !asksFirst && shell) key = shell;
// Later the tab's own shell counts, also after a reload.
if (wants || ended) history.replaceState(null, "", `?worker=${root.dataset.worker}`);
let socket = null;
let tries = 0;
let silence = 0;
let isOver = true; // no terminal is open, and none is tried
let shown = 0; // bytes that were shown since the server was told last
let earlier = 0; // bytes of earlier output that are still to come; xterm.js must not answer questions in them

function offer() {
  again.hidden = !isOver || !jobRuns();
  if (here) here.hidden = again.hidden || !asksFirst;
}

function say(text) {
  state.textContent = text;
  offer();
  markOwn();
}

function forget() {
  key = "";
  sessionStorage.removeItem(memory);
}

const send = (told) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(told));

function connect() {
  const size = { rows: terminal.rows, columns: terminal.cols };
  const asked = new URLSearchParams({ worker: root.dataset.worker, pings: 1, earlier: 1, ...size });
  if (key) asked.set("terminal", key);
  const address = new URL(`${root.dataset.terminal}?${asked}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  isOver = false;
  say("Connecting");
  const ours = new WebSocket(address);
  socket = ours;
  ours.binaryType = "arraybuffer";
  ours.addEventListener("open", () => listen(ours));
  ours.addEventListener("message", ({ data }) => {
    if (ours !== socket) return;
    listen(ours);
    if (typeof data === "string") {
      follow(JSON.parse(data));
      return;
    }
    terminal.write(new Uint8Array(data), () => {
      if (ours === socket) earlier = Math.max(0, earlier - data.byteLength);
      shown += data.byteLength;
      if (shown < READ_EVERY || ours !== socket) return;
      send({ read: shown });
      shown = 0;
    });
  });
  ours.addEventListener("close", () => lose(ours));
}

function follow(told) {
  if (told.ping) {
    send({ pong: told.ping });
  } else if (told.terminal) {
    key = told.terminal;
    sessionStorage.setItem(memory, key);
    tries = shown = 0;
    earlier = told.earlier ?? 0;
    if (earlier) terminal.reset(); // it comes again
    say("Connected");
    send({ size: [terminal.rows, terminal.cols] });
    terminal.focus();
  } else if (told.refused && key) {
    forget(); // the shell of an earlier visit has ended
    connect();
  } else {
    isOver = true;
    clearTimeout(silence);
    forget();
    const code = told.code === null || told.code === undefined ? "" : `, exit code ${told.code}`;
    say(told.refused ?? `Ended: ${told.ended}${code}`);
  }
}

// A server that has vanished closes no connection.
function listen(ours) {
  clearTimeout(silence);
  silence = setTimeout(() => {
    lose(ours);
    ours.close();
  }, SILENCE * 1000);
}

function lose(ours) {
  if (isOver || ours !== socket) return;
  clearTimeout(silence);
  socket = null;
  const wait = RETRIES[tries++];
  if (wait === undefined) {
    isOver = true;
    forget();
    say("The connection is lost.");
    return;
  }
  say(`The connection is lost. Trying again in ${Math.ceil(wait)} s`);
  setTimeout(connect, wait * 1000);
}

const encoder = new TextEncoder();
const type = (bytes) => !earlier && socket?.readyState === WebSocket.OPEN && socket.send(bytes);
terminal.onData((text) => type(encoder.encode(text)));
terminal.onBinary((text) => type(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
terminal.onResize(({ rows, cols }) => send({ size: [rows, cols] }));
// Tab belongs to the shell, so another key must lead out of the terminal.
terminal.attachCustomKeyEventHandler((event) => {
  if (event.type !== "keydown" || event.key !== "Escape" || !event.ctrlKey || !event.shiftKey) return true;
  (again.hidden ? document.querySelector(".tabs [aria-current=page]") : again).focus();
  return false;
});
// Keys typed here are no shortcuts of the portal.
root.addEventListener("keydown", (event) => event.stopPropagation());
new ResizeObserver(() => fit.fit()).observe(root);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (terminal.options.theme = colours()));
again.addEventListener("click", begin);

function begin() {
  root.hidden = false;
  terminal.reset();
  tries = 0;
  connect();
}

// Begins when the job starts to run, and again when it runs again. What the last terminal showed stays until then.
let didRun = jobRuns();
document.addEventListener("htmx:after:swap", () => {
  const runs = jobRuns();
  if (runs && !didRun && isOver) start();
  else if (!runs && isOver) offer();
  didRun = runs;
  markOwn();
});
if (didRun) start();

function start() {
  if (!asksFirst) {
    begin();
    return;
  }
  root.hidden = true;
  say(isElsewhere ? "Your shell is open in another window." : "The shell has ended.");
}

// The list of open shells offers none that this tab has, and no second button for a new one.
function markOwn() {
  for (const link of document.querySelectorAll("[data-shell-new]")) link.hidden = !again.hidden;
  for (const link of document.querySelectorAll("[data-shell-attach]"))
    link.hidden = !isOver && link.dataset.shellAttach === key;
}
