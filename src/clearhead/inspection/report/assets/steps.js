/* steps of the selected box; each opens to its equation, facts and heat map */
const openHeatmaps = new Set(); // redraw functions of open heat maps
redraws.add(() => { for (const redraw of openHeatmaps) redraw(); });

function showSteps(title, numbers, open) {
  openHeatmaps.clear();
  const heading = `${title}: ${numbers.length} step${numbers.length > 1 ? "s" : ""}`;
  byId("steps").replaceChildren(element("h3", { class: "steps-title" }, heading));
  for (const number of numbers) byId("steps").append(stepDetails(data.steps[number], number, open.has(tail(data.steps[number]))));
  announce(heading);
}

const tail = (step) => step.path.replace(/^.*layers\.\d+\./, ""); // equal in all layers

function stepDetails(step, number, open) {
  const details = element("details", { class: "step", "data-tail": tail(step) },
    element("summary", {}, element("span", { class: "operation" }, `${number + 1}. ${step.operation}`), element("span", { class: "shape" }, step.named_shape)));
  let redraw = null;
  const show = () => {
    if (details.open === Boolean(redraw)) return;
    if (details.open) {
      const map = heatmap(step);
      redraw = map.redraw;
      openHeatmaps.add(redraw);
      details.append(element("div", { class: "inside" }, formula(step), facts(step), map.box));
    } else {
      openHeatmaps.delete(redraw);
      redraw = null;
      details.querySelector(".inside").remove();
    }
  };
  details.addEventListener("toggle", show);
  details.open = open;
  show();
  return details;
}

function formula(step) {
  const math = element("div");
  math.innerHTML = data.equations[step.equation]; // MathML of the library's own equations
  return math;
}

function facts(step) {
  const list = element("dl", { class: "numbers" });
  const fact = (name, value) => list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  fact("path", step.path);
  fact("dtype", step.dtype);
  if (step.parameters) fact("parameters", step.parameters.toLocaleString("en"));
  for (const name of ["mean", "std", "min", "max"]) if (step.values) fact(name, digits(step.values[name]));
  const { heads, height, width, masked } = step.heat;
  if (masked) fact("masked, −∞", `${masked.toLocaleString("en")} of ${(heads * height * width).toLocaleString("en")}, excluded from the statistics above`);
  return list;
}

function heatmap(step) {
  const { heads, height, width, rows, columns, largest, masked } = step.heat;
  const pooled = rows < height || columns < width;
  let numbers = new Int8Array(heads * rows * columns);
  const value = (index) => (numbers[index] === -128 ? null : numbers[index] / 127);
  const cells = element("div", {
    class: heads > 1 ? "cells heads" : "cells", tabindex: "0", role: "application",
    "aria-label": `Heat map of ${step.operation}: ${heads > 1 ? `${heads} heads of ` : ""}${plural(rows, "row")} by ${plural(columns, "column")}. Arrow keys move from cell to cell.`,
  });
  for (let head = 0; head < heads; head++) {
    const one = panel();
    if (heads > 1) one.firstChild.style.aspectRatio = Math.max(0.7, Math.min(3, columns / rows));
    else one.firstChild.style.height = `${Math.max(24, Math.min(220, rows * 9))}px`;
    cells.append(element("div", {}, one, heads > 1 ? `head ${head}` : ""));
  }
  const draw = () => cells.querySelectorAll("canvas").forEach((canvas, head) => shade(canvas, rows, columns, (index) => value(head * rows * columns + index)));
  draw();
  bytes(step.heat.data).then((unpacked) => { numbers = new Int8Array(unpacked.buffer); draw(); cells.dataset.ready = "yes"; });
  addNavigation(cells, (at) => {
    const range = (name, [first, last]) => (last > first ? `${name}s ${first}-${last}` : `${name} ${first}`);
    const [down, across] = [span(at.row, rows, height), span(at.column, columns, width)];
    const block = down[1] > down[0] || across[1] > across[0];
    const share = value((at.panel * rows + at.row) * columns + at.column);
    const text = share === null ? (masked ? "masked, −∞" : "not finite") : `${block ? "mean " : ""}${withError(share * largest, largest / 254)}`;
    return `${heads > 1 ? `head ${at.panel}, ` : ""}${range("row", down)}, ${range("column", across)}: ${text}`;
  });
  const legend = element("div", { class: "ends" });
  const key = (kind, name) => legend.append(element("span", { class: `key ${kind}` }, name));
  if (step.values?.min < 0) key("negative", "negative");
  key("positive", "positive");
  if (masked) key("masked", "masked, −∞");
  const size = `${heads > 1 ? `${heads} heads of ` : ""}${height} × ${width} values`;
  const how = pooled ? `, in ${rows} × ${columns} cells (block means). Largest cell` : "; largest value";
  legend.append(element("span", { class: "size" }, `${size}${how} ${digits(largest)}`));
  const error = element("p", { class: "hint" }, "Select a cell to read its value. “±”: this page stores each cell in one byte, so a value is rounded by up to this amount.");
  return { box: element("div", {}, cells, legend, error), redraw: draw };
}
