// A terminal in a running job. xterm.js draws it; portal/terminals/talk.py says what goes over the WebSocket.
// If the connection dies, the page connects to the same shell again, which waits for it for a while.

const root = document.querySelector("[data-terminal]");
const state = document.querySelector("[data-terminal-state]");
const again = document.querySelector("[data-terminal-new]");

const READ_EVERY = 64 * 1024; // bytes of output that were shown, after which the server is told
const RETRIES = [0.5, 1, 2, 4, 8, 15, 15, 15, 15]; // seconds before each try to connect again
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
terminal.open(root);
fit.fit();
root.querySelector("textarea").setAttribute("aria-label", "Terminal");

const memory = `fairlot-terminal:${root.dataset.terminal}:${root.dataset.worker}`;
let key = sessionStorage.getItem(memory) ?? "";
let socket = null;
let tries = 0;
let shown = 0; // bytes that were shown since the server was told last

function say(text, isOver = false) {
  state.textContent = text;
  again.hidden = !isOver;
}

function forget() {
  key = "";
  sessionStorage.removeItem(memory);
}

const send = (told) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(told));

function connect() {
  const asked = new URLSearchParams({ worker: root.dataset.worker, rows: terminal.rows, columns: terminal.cols });
  if (key) asked.set("terminal", key);
  const address = new URL(`${root.dataset.terminal}?${asked}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  say("Connecting");
  let isOver = false;
  const ours = new WebSocket(address);
  socket = ours;
  ours.binaryType = "arraybuffer";
  ours.addEventListener("message", ({ data }) => {
    if (typeof data !== "string") {
      terminal.write(new Uint8Array(data), () => {
        shown += data.byteLength;
        if (shown < READ_EVERY || ours !== socket) return;
        send({ read: shown });
        shown = 0;
      });
      return;
    }
    const told = JSON.parse(data);
    if (told.terminal) {
      key = told.terminal;
      sessionStorage.setItem(memory, key);
      tries = shown = 0;
      say("Connected");
      send({ size: [terminal.rows, terminal.cols] });
      terminal.focus();
    } else if (told.refused && key) {
      forget(); // the shell of an earlier visit has ended
      isOver = true;
      connect();
    } else {
      isOver = true;
      forget();
      const code = told.code === null || told.code === undefined ? "" : `, exit code ${told.code}`;
      say(told.refused ?? `Ended: ${told.ended}${code}`, true);
    }
  });
  ours.addEventListener("close", () => {
    if (isOver || ours !== socket) return;
    const wait = RETRIES[tries++];
    if (wait === undefined) {
      forget();
      say("The connection is lost.", true);
      return;
    }
    say(`The connection is lost. Trying again in ${Math.ceil(wait)} s`);
    setTimeout(connect, wait * 1000);
  });
}

const encoder = new TextEncoder();
const type = (bytes) => socket?.readyState === WebSocket.OPEN && socket.send(bytes);
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
again.addEventListener("click", () => {
  terminal.reset();
  tries = 0;
  connect();
});
connect();
