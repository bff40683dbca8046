// The selection of rows in a list: counts them, selects all, and keeps the selection when the list refreshes. The form of
// the selection names the element with the list.

const form = document.querySelector("[data-selection]");
const chosen = new Set();
const boxes = () => [...document.querySelectorAll(`input[form="${form.id}"][type=checkbox]`)];
const label = form.querySelector("[data-selected-count]");
const hint = label.textContent;

function show() {
  const shown = boxes();
  const count = shown.filter((box) => box.checked).length;
  const all = document.querySelector("[data-selects-all]");
  if (all) {
    all.hidden = shown.length === 0;
    all.checked = count > 0 && count === shown.length;
    all.indeterminate = count > 0 && count < shown.length;
  }
  const text = count ? `${count} selected:` : hint;
  if (label.textContent !== text) label.textContent = text; // each change wakes the observer below
  for (const button of form.querySelectorAll("button")) {
    const { least = 1, most = Infinity } = button.dataset;
    button.disabled = count < Number(least) || count > Number(most);
  }
  form.hidden = shown.length === 0;
}

function keep() {
  chosen.clear();
  for (const box of boxes()) if (box.checked) chosen.add(box.value);
  show();
}

let last = null;
document.addEventListener("click", (event) => {
  const box = event.target;
  if (!box.matches?.(`input[form="${form.id}"][type=checkbox]`)) return;
  if (event.shiftKey && last?.isConnected) {
    const shown = boxes();
    const [from, to] = [shown.indexOf(last), shown.indexOf(box)].sort((a, b) => a - b);
    for (const between of shown.slice(from, to + 1)) between.checked = box.checked;
  }
  last = box;
  keep();
});
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-selects-all]")) return;
  for (const box of boxes()) box.checked = event.target.checked;
  keep();
});
new MutationObserver(() => {
  for (const box of boxes()) box.checked = chosen.has(box.value);
  show();
}).observe(document.getElementById(form.dataset.selection).parentElement, { childList: true, subtree: true });
window.addEventListener("pageshow", keep);
keep();
