// Hover values of charts on one axis: [data-axis] has the times, or the name, the first and the last of the steps; each
// [data-chart] has the values of its lines. Pointing at a chart or pressing arrow keys on the axis shows the values of
// one time in all charts, or of the nearest step that each line has. All state is in the page's attributes, and
// listeners are on the document, so that a refresh of the charts changes nothing.

const axisOf = () => document.querySelector("[data-axis]");
const parsed = new WeakMap(); // charts and axes by their element: [text, content]

function contentOf(element, text, read = JSON.parse) {
  const known = parsed.get(element);
  if (known?.[0] === text) return known[1];
  const content = read(text);
  parsed.set(element, [text, content]);
  return content;
}

// Each line as pairs of a place (the number of a window, or a step) and a value, in order.
const linesOf = (chart) => contentOf(chart, chart.dataset.values, (text) => JSON.parse(text).map(
  (line) => Object.entries(line).map(([place, value]) => [Number(place), value]).sort((one, other) => one[0] - other[0]),
));

function indexFrom(points, place) { // of the first point at `place` or behind it
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(points, place) {
  const index = indexFrom(points, place);
  const [before, after] = [points[index - 1], points[index]];
  return !before || (after && after[0] - place < place - before[0]) ? after : before;
}

// What an axis shows: its first and last places, where they are (as a part of its width), and their names.
function scaleOf(axis) {
  if (axis.dataset.times !== undefined) {
    const times = contentOf(axis, axis.dataset.times);
    return {
      first: 0, last: times.length - 1, part: (place) => (place + 0.5) / times.length,
      place: (part) => Math.floor(part * times.length), name: (place) => times[place],
    };
  }
  const [first, last, margin] = ["first", "last", "margin"].map((key) => Number(axis.dataset[key]));
  const inner = 1 - 2 * margin;
  return {
    first, last, bySteps: true,
    part: (step) => margin + inner * (last > first ? (step - first) / (last - first) : 0.5),
    place: (part) => snapped(first + Math.min(Math.max((part - margin) / inner, 0), 1) * (last - first)),
    name: (step) => `${axis.dataset.steps} ${Number(step.toPrecision(10))}`,
  };
}

const allLines = () => [...document.querySelectorAll("[data-chart]")].flatMap(linesOf).filter((line) => line.length);

function snapped(step) { // to the nearest step that a line has
  const found = allLines().map((line) => nearest(line, step)[0]);
  return found.length ? found.reduce((one, other) => (Math.abs(other - step) < Math.abs(one - step) ? other : one)) : step;
}

function beside(scale, place, by) { // the place that is `by` places away
  if (!scale.bySteps) return place + by;
  for (let count = Math.abs(by); count; count--) {
    const next = allLines().map((line) => {
      const index = indexFrom(line, place);
      return line[by < 0 ? index - 1 : line[index]?.[0] === place ? index + 1 : index]?.[0];
    }).filter((step) => step !== undefined);
    if (next.length) place = by < 0 ? Math.max(...next) : Math.min(...next);
  }
  return place;
}

let chosen = null; // the window or step that is shown; null: the last values

function textOf(value, unit) {
  const text = String(Number(value.toPrecision(4)));
  return unit ? `${text} ${unit}` : text;
}

function valueAt(line, scale, unit) {
  const point = line?.length ? nearest(line, chosen) : undefined;
  if (!point || (!scale.bySteps && point[0] !== chosen)) return "–";
  return point[0] === chosen ? textOf(point[1], unit) : `${textOf(point[1], unit)} (${scale.name(point[0])})`;
}

function show(place) {
  const axis = axisOf();
  if (!axis) return;
  const scale = scaleOf(axis);
  chosen = place === null ? null : Math.min(Math.max(place, scale.first), scale.last);
  const said = [];
  for (const chart of document.querySelectorAll("[data-chart]")) {
    const lines = linesOf(chart);
    const cursor = chart.querySelector("[data-cursor]");
    cursor.setAttribute("visibility", chosen === null ? "hidden" : "visible");
    if (chosen !== null) {
      const x = `${100 * scale.part(chosen)}%`;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    chart.querySelectorAll("[data-value]").forEach((cell, number) => {
      cell.textContent = chosen === null ? cell.dataset.value : valueAt(lines[number], scale, chart.dataset.unit);
    });
    const items = [...chart.querySelectorAll(".metric-legend li")];
    const values = items.map((item) => [...item.querySelectorAll("span")].map((part) => part.textContent).join(" "));
    said.push(`${chart.querySelector("h3").textContent}: ${values.join(", ")}`);
  }
  document.querySelector("[data-axis-time]").textContent = chosen === null ? "" : scale.name(chosen);
  axis.setAttribute("aria-valuenow", chosen ?? scale.last);
  const name = scale.name(chosen ?? scale.last);
  axis.setAttribute("aria-valuetext", chosen === null ? name : `${name}. ${said.join(". ")}`);
}

function placeAt(event) {
  const element = event.target.closest?.("[data-axis], [data-chart]");
  const axis = axisOf();
  if (!element || !axis) return null;
  const box = (element.querySelector("[data-plot]") ?? element).getBoundingClientRect();
  const part = (event.clientX - box.left) / box.width;
  return part < 0 || part > 1 ? null : scaleOf(axis).place(part);
}

document.addEventListener("pointermove", (event) => {
  const place = placeAt(event);
  if (place !== null && place !== chosen) show(place);
  else if (place === null && chosen !== null && document.activeElement !== axisOf()) show(null);
});
document.addEventListener("keydown", (event) => {
  const axis = axisOf();
  if (!axis || event.target !== axis) return;
  const scale = scaleOf(axis);
  const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
  const next = by
    ? beside(scale, chosen ?? scale.last, by)
    : { Home: scale.first, End: scale.last, Escape: null }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  show(next);
});
document.addEventListener("focusin", (event) => {
  if (event.target === axisOf() && chosen === null) show(scaleOf(event.target).last);
});
document.addEventListener("focusout", (event) => {
  if (event.target === axisOf()) show(null);
});
// A refresh writes the last values again; show the chosen place instead.
new MutationObserver((changes) => {
  if (chosen !== null && changes.some((change) => change.attributeName !== "aria-valuetext")) show(chosen);
}).observe(document.body, {
  subtree: true, attributes: true, attributeFilter: ["data-values", "data-times", "data-first", "data-last"],
});

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
