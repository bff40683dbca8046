// The submit page: a field is invalid exactly while its problem is shown, whoever changed the problem.

const form = document.getElementById("submit-form");

function mark() {
  for (const field of form.querySelectorAll("[aria-describedby]")) {
    const problem = field
      .getAttribute("aria-describedby")
      .split(/\s+/)
      .map((id) => document.getElementById(id))
      .find((element) => element?.matches(".field-error, #yaml-problems"));
    if (!problem) continue;
    if (problem.textContent.trim()) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

function settle() {
  mark();
  restore();
}

// A text field keeps the height to which it was pulled when its side is written anew. Only as a property:
// the CSP refuses a style attribute, which is why htmx copies none (morphIgnore).
const heights = new Map();

function remember() {
  for (const field of form.querySelectorAll("textarea[id]")) if (field.style.height) heights.set(field.id, field.style.height);
}

function restore() {
  for (const [id, height] of heights) {
    const field = document.getElementById(id);
    if (field && field.style.height !== height) field.style.height = height;
  }
}

// Files that are dropped on the field of the upload are chosen there. A browser cannot send a dropped folder.
function dropped(event) {
  const place = event.target.closest?.("[data-drops]");
  if (!place || !event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  place.toggleAttribute("data-over", event.type === "dragover");
  if (event.type !== "drop") return;
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.());
  if (entries.some((entry) => entry?.isDirectory)) return refuse(place, "folder");
  const field = document.getElementById(place.dataset.drops);
  field.files = event.dataTransfer.files;
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

// Files that are too large are not sent: the server would refuse the whole form with them.
function chosen(event) {
  const { target } = event;
  const place = target.type === "file" && target.closest("[data-drops]");
  if (!place) return;
  const bytes = [...target.files].reduce((sum, file) => sum + file.size, 0);
  const isLarge = bytes > Number(place.querySelector("[data-files-refused]").dataset.most);
  refuse(place, isLarge ? "large" : "");
  if (!isLarge) return;
  event.stopPropagation();
  target.value = "";
}

function refuse(place, why) {
  const refusal = place.querySelector("[data-files-refused]");
  refusal.textContent = refusal.dataset[why] ?? "";
}

// What is entered after a request was sent is newer than its answer: the parts that the answer replaces take it over.
const sent = new WeakMap(); // by request: the state of each field when it was sent
const FIELDS = "input:not([type=file]), textarea, select";
const isMark = (field) => /^(checkbox|radio)$/.test(field.type);
const stateOf = (field) => (isMark(field) ? field.checked : field.value);

// The fields of a part with their keys. Rows of a list have fields of the same name, which are told apart by their order.
function keyed(part) {
  const counts = new Map();
  return [...part.querySelectorAll(FIELDS)].map((field) => {
    const name = JSON.stringify([field.name, isMark(field) ? field.value : ""]);
    counts.set(name, (counts.get(name) ?? 0) + 1);
    return [`${counts.get(name)} ${name}`, field];
  });
}

// The side of the form that was edited last. The other side's edits wait for a moment before they are converted:
// their answer would overwrite what is newer.
let edited = null;

function sideOf({ target }) {
  edited = target.closest("[data-converts]") ?? edited;
}

function send(event) {
  const { ctx } = event.detail;
  if (ctx.sourceElement.matches("[data-converts]") && ctx.sourceElement !== edited) event.preventDefault();
  else sent.set(ctx, states());
}

const states = () => new Map(keyed(form).map(([key, field]) => [key, stateOf(field)]));

function takeOver({ detail: { ctx, tasks } }) {
  const before = sent.get(ctx);
  const now = states();
  for (const { fragment } of before ? tasks : []) {
    for (const fold of fragment.querySelectorAll("details[data-kept]")) fold.open ||= document.getElementById(fold.id)?.open ?? false;
    for (const [key, field] of keyed(fragment)) {
      if (!before.has(key) || !now.has(key) || now.get(key) === before.get(key)) continue;
      if (isMark(field)) field.checked = now.get(key);
      else field.value = now.get(key);
    }
  }
  // While an upload is under way, the form is converted without it; so it is converted once more.
  if (ctx.sourceElement.type === "file") form.querySelector("[data-converts]").dispatchEvent(new Event("input", { bubbles: true }));
}

function converted({ detail: { ctx } }) {
  if (ctx.sourceElement.matches("[data-converts]")) form.dispatchEvent(new Event("converted"));
}

// Whoever comes back after submitting sees the job that was made of this form, instead of an empty form.
function leave({ submitter }) {
  if (form.dataset.sent && submitter?.name === "do" && submitter.value === "submit") {
    history.replaceState(history.state, "", `${location.pathname}?sent=${encodeURIComponent(form.dataset.sent)}`);
  }
}

// Presets of a schedule: a choice and a time write the cron expression, and a written expression shows its choice.
function offerPresets(place) {
  const [choice, time] = [place.querySelector("select"), place.querySelector("input[type=time]")];
  const expression = document.getElementById(place.dataset.presets);
  // An expression that is written below has its own time.
  const show = () => {
    time.closest(".field").hidden = !choice.value;
  };
  const read = () => {
    const words = expression.value.trim().split(/\s+/);
    const kinds = [...choice.options].map((option) => option.value.split(" "));
    const fits = (kind) => kind.length === words.length && kind.every((part, at) => (part.startsWith("{") ? /^\d{1,2}$/.test(words[at]) : part === words[at].toUpperCase()));
    choice.selectedIndex = kinds.findIndex((kind, at) => fits(kind) || at === kinds.length - 1);
    show();
    if (!choice.value) return;
    const [minute, hour] = words;
    time.value = `${hour === "*" ? time.value.slice(0, 2) : hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  };
  const write = () => {
    show();
    const [hour, minute] = time.value.split(":");
    if (!choice.value || !minute) return;
    expression.value = choice.value.replace("{m}", Number(minute)).replace("{h}", Number(hour));
    expression.dispatchEvent(new Event("input", { bubbles: true }));
  };
  choice.addEventListener("change", write);
  time.addEventListener("change", write);
  expression.addEventListener("input", (event) => event.isTrusted && read());
  place.hidden = false;
  read();
}

if (form) {
  form.querySelectorAll("[data-presets]").forEach(offerPresets);
  form.addEventListener("submit", leave);
  form.addEventListener("htmx:before:request", send);
  form.addEventListener("htmx:before:swap", takeOver);
  form.addEventListener("htmx:after:swap", converted);
  for (const name of ["dragover", "dragleave", "drop"]) form.addEventListener(name, dropped);
  form.addEventListener("change", chosen, true);
  // A chosen file is sent by its own request.
  form.addEventListener("input", (event) => event.target.type === "file" && event.stopPropagation(), true);
  form.addEventListener("input", sideOf);
  form.addEventListener("pointerup", remember);
  new MutationObserver(settle).observe(form, { childList: true, subtree: true, characterData: true });
}
