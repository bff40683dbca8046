// Hover values of charts on one time axis: [data-axis] has the times, each [data-chart] the values of its lines.
// Pointing at a chart or pressing arrow keys on the axis shows the values of one time in all charts. All state is in
// the page's attributes, and listeners are on the document, so that a refresh of the charts changes nothing.

const axisOf = () => document.querySelector("[data-axis]");
const parsed = new WeakMap(); // charts and axes by their element: [text, content]

function contentOf(element, text) {
  const known = parsed.get(element);
  if (known?.[0] === text) return known[1];
  const content = JSON.parse(text);
  parsed.set(element, [text, content]);
  return content;
}

let chosen = null; // the window that is shown; null: the last values

function textOf(value, unit) {
  if (value === undefined) return "–";
  const text = String(Number(value.toPrecision(4)));
  return unit ? `${text} ${unit}` : text;
}

function show(place) {
  const axis = axisOf();
  if (!axis) return;
  const times = contentOf(axis, axis.dataset.times);
  chosen = place === null ? null : Math.min(Math.max(place, 0), times.length - 1);
  const said = [];
  for (const chart of document.querySelectorAll("[data-chart]")) {
    const lines = contentOf(chart, chart.dataset.values);
    const cursor = chart.querySelector("[data-cursor]");
    cursor.setAttribute("visibility", chosen === null ? "hidden" : "visible");
    if (chosen !== null) {
      const x = `${(100 * (chosen + 0.5)) / times.length}%`;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    chart.querySelectorAll("[data-value]").forEach((cell, number) => {
      cell.textContent = chosen === null ? cell.dataset.value : textOf(lines[number]?.[chosen], chart.dataset.unit);
    });
    const items = [...chart.querySelectorAll(".metric-legend li")];
    const values = items.map((item) => [...item.querySelectorAll("span")].map((part) => part.textContent).join(" "));
    said.push(`${chart.querySelector("h3").textContent}: ${values.join(", ")}`);
  }
  document.querySelector("[data-axis-time]").textContent = chosen === null ? "" : times[chosen];
  axis.setAttribute("aria-valuenow", chosen ?? times.length - 1);
  axis.setAttribute("aria-valuetext", chosen === null ? times.at(-1) : `${times[chosen]}. ${said.join(". ")}`);
}

function placeAt(event) {
  const element = event.target.closest?.("[data-axis], [data-chart]");
  const axis = axisOf();
  if (!element || !axis) return null;
  const box = (element.querySelector("[data-plot]") ?? element).getBoundingClientRect();
  const part = (event.clientX - box.left) / box.width;
  if (part < 0 || part > 1) return null;
  return Math.floor(part * contentOf(axis, axis.dataset.times).length);
}

document.addEventListener("pointermove", (event) => {
  const place = placeAt(event);
  if (place !== null && place !== chosen) show(place);
  else if (place === null && chosen !== null && document.activeElement !== axisOf()) show(null);
});
document.addEventListener("keydown", (event) => {
  const axis = axisOf();
  if (!axis || event.target !== axis) return;
  const last = contentOf(axis, axis.dataset.times).length - 1;
  const now = chosen ?? last;
  const next = {
    ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1,
    PageDown: now - 10, PageUp: now + 10, Home: 0, End: last, Escape: null,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  show(next);
});
document.addEventListener("focusin", (event) => {
  if (event.target === axisOf() && chosen === null) show(contentOf(event.target, event.target.dataset.times).length - 1);
});
document.addEventListener("focusout", (event) => {
  if (event.target === axisOf()) show(null);
});
// A refresh writes the last values again; show the chosen time instead.
new MutationObserver((changes) => {
  if (chosen !== null && changes.some((change) => change.attributeName !== "aria-valuetext")) show(chosen);
}).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["data-values", "data-times"] });

// Marks: each [data-mark] in a [data-marks] says its values in the chart's [data-mark-value] when it is pointed at or
// has the focus. One mark of a chart is in the order of the Tab key; arrow keys, Home and End lead to the others.

const markOf = (node) => node?.closest?.("[data-mark]") ?? null;
const boxOf = (node) => node?.closest?.("[data-marks]") ?? null;

function sayMark(box, mark) {
  const line = box.querySelector("[data-mark-value]");
  line.dataset.hint ??= line.textContent;
  box.querySelector("[data-said]")?.removeAttribute("data-said");
  mark?.setAttribute("data-said", "");
  line.textContent = mark ? mark.getAttribute("aria-label") : line.dataset.hint;
}

document.addEventListener("pointerover", (event) => {
  const mark = markOf(event.target);
  if (mark) sayMark(boxOf(mark), mark);
});
document.addEventListener("pointerout", (event) => {
  const box = boxOf(event.target);
  if (box && markOf(event.target) && !markOf(event.relatedTarget)) sayMark(box, markOf(document.activeElement));
});
document.addEventListener("focusin", (event) => {
  const mark = markOf(event.target);
  if (!mark) return;
  const box = boxOf(mark);
  for (const other of box.querySelectorAll('[data-mark][tabindex="0"]')) other.setAttribute("tabindex", "-1");
  mark.setAttribute("tabindex", "0");
  sayMark(box, mark);
});
document.addEventListener("focusout", (event) => {
  const mark = markOf(event.target);
  if (mark && boxOf(event.relatedTarget) !== boxOf(mark)) sayMark(boxOf(mark), null);
});
document.addEventListener("keydown", (event) => {
  const mark = markOf(event.target);
  if (!mark || event.ctrlKey || event.altKey || event.metaKey) return;
  const marks = [...boxOf(mark).querySelectorAll("[data-mark]")];
  const now = marks.indexOf(mark);
  const next = {
    ArrowLeft: now - 1, ArrowUp: now - 1, ArrowRight: now + 1, ArrowDown: now + 1, Home: 0, End: marks.length - 1,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  marks[Math.min(Math.max(next, 0), marks.length - 1)].focus();
});
