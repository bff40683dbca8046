// What every page needs: dialogs, menus, shortcuts, relative times, copying. No state of its own.

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]") !== null;

// --- dialogs, menus, dismissals, copying: by data attributes -----------------------------------
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    closeMenus();
    document.getElementById(opener.dataset.opens)?.showModal();
    return;
  }
  if (event.target.closest("[data-closes]")) event.target.closest("dialog")?.close();
  if (event.target.matches("dialog")) event.target.close(); // a click on the backdrop
  const dismissed = event.target.closest("[data-dismiss]")?.closest("[data-message]");
  if (dismissed) {
    answers.delete(dismissed);
    dismissed.remove();
  }
  const copier = event.target.closest("[data-copies]");
  if (copier) copy(copier);
  closeMenus(event.target.closest("details[data-menu]"));
});

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (menu !== except) menu.open = false;
  }
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  await navigator.clipboard.writeText(source.value ?? source.textContent);
  const label = button.querySelector("span") ?? button;
  const before = label.textContent;
  label.textContent = "Copied";
  setTimeout(() => (label.textContent = before), 1500);
}

// --- forms that send themselves when a choice changes ------------------------------------------
document.addEventListener("change", (event) => {
  if (event.target.matches("form[data-auto] select, form[data-auto] input[type=checkbox]")) {
    event.target.form.requestSubmit();
  }
  if (event.target.matches("[data-theme-choice]")) document.documentElement.dataset.theme = event.target.value;
});
// Empty filters stay out of the URL.
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-auto], form.topsearch")) return;
  for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
});
window.addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-auto] :disabled, form.topsearch :disabled")) field.disabled = false;
});

// --- a page that answers a form is asked for again by a reload; the form is not sent again ---------
history.replaceState(history.state, "", location.href);

// --- what is said about a form stands beside the button that sent it, and has the focus ----------
const answers = new Set(); // messages that were put beside their forms

// By its whole address, as two forms of a page may differ in the query alone; else by the path, as queries change.
function sentFrom(address) {
  const { href, pathname } = new URL(address, location.href);
  const targets = (form) =>
    [form.getAttribute("action") ?? "", ...[...form.querySelectorAll("[formaction]")].map((button) => button.getAttribute("formaction"))].map(
      (target) => new URL(target, location.href),
    );
  const forms = [...document.querySelectorAll("form[method=post]")];
  return (
    forms.find((form) => targets(form).some((target) => target.href === href)) ??
    forms.find((form) => targets(form).some((target) => target.pathname === pathname))
  );
}

// A form in a closed dialog is answered where that is opened; to one that is gone the answer stays at the top. So does
// the success of a menu, which would cover what it has changed, and the answer to a button of the page's head.
function placeOf(message) {
  const form = sentFrom(message.dataset.answers);
  if (form?.closest(".page-actions") || (message.matches(".note-good") && form?.closest("[data-menu]"))) return undefined;
  const dialog = form?.closest("dialog:not([open])");
  if (dialog) return document.querySelector(`[data-opens="${CSS.escape(dialog.id)}"]`)?.parentElement;
  return form;
}

let focused; // what last had the focus: a swap takes it away without a word
document.addEventListener("focusin", (event) => (focused = event.target));

function putBack() {
  for (const message of answers) {
    if (message.isConnected) continue;
    (placeOf(message) ?? document.querySelector(".messages"))?.append(message);
    if (message === focused && document.activeElement === document.body) message.focus({ preventScroll: true });
  }
}

function show(element) {
  for (let fold = element.closest("details:not([open])"); fold; fold = fold.parentElement.closest("details:not([open])")) fold.open = true;
  const dialog = element.closest("dialog:not([open])");
  if (dialog) dialog.showModal();
  if (!element.matches("input, select, textarea, button")) element.tabIndex = -1;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "center" });
}

function showAnswers() {
  for (const message of document.querySelectorAll(".messages > [data-answers]")) {
    const place = placeOf(message);
    if (!place) continue;
    place.append(message);
    answers.add(message);
  }
  const wrong = "form[method=post] [aria-invalid=true]";
  const refusal = ".field-error[role=alert]:not(:empty, [hidden]), form[method=post] :is(.field-error:not(:empty), .note-bad[role=alert])";
  const first = document.querySelector(wrong) ?? document.querySelector(refusal) ?? [...answers][0];
  if (first) show(first);
}
showAnswers();
document.addEventListener("htmx:after:swap", putBack);

// --- tables larger than their box: the keyboard reaches the box, and scrolls it -------------------
function markLargeTables() {
  for (const box of document.querySelectorAll(".table-wrap")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    box.toggleAttribute("data-scrolls", scrolls);
    const marks = { tabindex: "0", role: "group", "aria-label": box.querySelector("caption")?.textContent ?? "Table" };
    for (const [name, value] of Object.entries(marks)) scrolls ? box.setAttribute(name, value) : box.removeAttribute(name);
  }
}
markLargeTables();
window.addEventListener("resize", markLargeTables);
document.addEventListener("htmx:after:swap", markLargeTables);
document.addEventListener("toggle", markLargeTables, { capture: true });

// --- tooltips of terms: placed beside their link, away with Escape until pointed at again --------
function placeTooltip(event) {
  const term = event.target.closest?.(".term");
  if (!term) return;
  const [link, tooltip] = term.children;
  const { left, bottom, top } = link.getBoundingClientRect();
  const fitsBelow = bottom + tooltip.offsetHeight < window.innerHeight;
  tooltip.style.left = `${Math.max(8, Math.min(left, window.innerWidth - tooltip.offsetWidth - 8))}px`;
  tooltip.style.top = `${fitsBelow ? bottom : top - tooltip.offsetHeight}px`;
}
document.addEventListener("pointerover", placeTooltip);
document.addEventListener("focusin", placeTooltip);
for (const left of ["pointerout", "focusout"]) {
  document.addEventListener(left, (event) => event.target.closest?.(".term")?.removeAttribute("data-dismissed"));
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const term of document.querySelectorAll(".term:is(:hover, :focus-within)")) term.dataset.dismissed = "";
});

// --- shortcuts: never inside a field, never with a modifier ------------------------------------
const PLACES = { h: "home", j: "jobs", c: "cluster", s: "share", t: "trades", u: "usage", a: "administration" };
let goUntil = 0;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenus();
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (goUntil > event.timeStamp) {
    goUntil = 0;
    const place = PLACES[event.key];
    const link = place && document.querySelector(`.sidebar [data-place="${place}"]`);
    if (link) {
      event.preventDefault();
      link.click();
      return;
    }
  }
  if (event.key === "g") goUntil = event.timeStamp + 1500;
  else if (event.key === "/") focusOn(event, document.querySelector("[data-search-here]") ?? document.querySelector("[data-search]"));
  else if (event.key === "n") document.querySelector(".topbar-new")?.click();
  else if (event.key === "?") document.getElementById("help")?.showModal();
});

function focusOn(event, field) {
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select?.();
}

// --- relative times: the words of portal/wording.py --------------------------------------------
const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [86400 * 365, 86400, "d"], [Infinity, 86400 * 365, "y"]];
function relative(moment) {
  const seconds = (Date.now() - moment) / 1000;
  const away = Math.abs(seconds);
  if (away < 10) return "now";
  const rounded = seconds < 0 ? 0.5 : 0;
  const counts = STEPS.map(([limit, size, unit]) => [limit, size, unit, Math.floor(away / size + rounded)]);
  const [, , unit, count] = counts.find(([limit, size, , count]) => count * size < limit);
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
}
function updateTimes() {
  for (const time of document.querySelectorAll("time[data-ago], time[data-lasting]")) {
    const ago = relative(Date.parse(time.dateTime));
    const text = "ago" in time.dataset ? ago : ago === "now" ? "a moment" : ago.replace(/ ago$/, "");
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(updateTimes, 10_000);
