/* probabilities */
function probabilityCell(one) {
  const probability = Math.exp(one.log_prob);
  return [element("span", { class: "probability", style: `width:calc(var(--bar) * ${probability.toFixed(3)})` }), `${(100 * probability).toFixed(1)} %`];
}

function probabilities() {
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...["", "token", "probability", "alternatives"].map((name) => element("th", { scope: "col" }, name)))));
  const body = element("tbody");
  data.output_tokens.forEach((one, index) => {
    const alternatives = one.alternatives.filter((other) => other.token !== one.token).slice(0, 3);
    const others = alternatives.map((other) => element("span", {}, `${display(other.token)} ${(100 * Math.exp(other.log_prob)).toFixed(1)} %`));
    body.append(element("tr", {}, element("td", {}, String(index)), element("td", { title: one.token }, display(one.token)), element("td", {}, ...probabilityCell(one)),
      element("td", { class: "alternatives" }, ...others)));
  });
  table.append(body);
  byId("word-view").append(table);
}
if (data.output_tokens) probabilities();

/* beams: one column for each step, with the outputs that end at the step below its beams */
const TREE = { wide: 112, tall: 40, margin: 78, box: 88 };

function beams() {
  const most = Math.max(...data.tree.map((column) => column.length), 1), below = {};
  const ended = data.outputs.map((one, rank) => {
    const lane = most + (below[one.end.step] = (below[one.end.step] ?? -1) + 1);
    return { ...one.end, lane, rank, best: rank === 0, alternatives: [] };
  });
  const columns = Math.max(data.tree.length, ...ended.map((one) => one.step + 1));
  const rows = Math.max(most, ...ended.map((one) => one.lane + 1));
  const width = TREE.margin + columns * TREE.wide + 10, height = rows * TREE.tall + 16;
  const picture = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Beams by step, from left to right" });
  picture.append(svgElement("text", { x: 8, y: middle(0) + 4 }, truncate(display(data.target[0] ?? ""), 7)));
  const nodes = data.tree.flatMap((column, step) => column.map((node, beam) => ({ ...node, step, lane: beam }))).concat(ended);
  for (const node of nodes.filter((one) => one.from !== null)) picture.append(link(node));
  for (const node of nodes) picture.append(nodeOf(node));
  byId("beam-view").append(picture);
  for (const one of data.outputs) {
    byId("beam-outputs").append(element("li", {}, one.text, element("span", {}, `score ${one.score.toFixed(3)}, log-probability ${one.log_prob.toFixed(3)}`)));
  }
}

const middle = (number) => number * TREE.tall + TREE.tall / 2 + 4;

function link({ step, from, lane: own, best }) {
  const x = TREE.margin + step * TREE.wide, start = step ? x - TREE.wide + TREE.box : TREE.margin - 18;
  const [bend, left, right] = [(start + x) / 2, middle(step ? from : 0), middle(own)];
  return svgElement("path", { class: `link${best ? " best" : ""}`, d: `M${start},${left} C${bend},${left} ${bend},${right} ${x},${right}` });
}

function nodeOf(node) {
  const x = TREE.margin + node.step * TREE.wide, y = middle(node.lane), end = node.rank !== undefined;
  const others = node.alternatives.map((other) => `${display(other.token)} ${other.log_prob.toFixed(2)}`).join(", ");
  const first = end ? `Output ${node.rank + 1} ends with ${display(node.token)}` : display(node.token);
  const label = `${first}: ${node.log_prob.toFixed(3)}, total ${node.total.toFixed(3)}${others ? `. Most probable: ${others}` : ""}`;
  const group = svgElement("g", { class: `node${node.best ? " best" : ""}${end ? " end" : ""}`, tabindex: "0", role: "img", "aria-label": label });
  group.append(svgElement("rect", { x, y: y - 15, width: TREE.box, height: 30, rx: end ? 15 : 7 }),
    svgElement("text", { x: x + (end ? 13 : 7), y: y - 1 }, end ? `${node.rank + 1}. ${truncate(display(node.token), 8)}` : truncate(display(node.token), 11)),
    svgElement("text", { x: x + (end ? 13 : 7), y: y + 12, class: "dim", style: "font-size:10px" }, node.total.toFixed(2)));
  group.addEventListener("pointermove", (event) => showTip(label, event.clientX, event.clientY));
  group.addEventListener("pointerleave", hideTip);
  group.addEventListener("focus", () => { const rect = group.getBoundingClientRect(); showTip(label, rect.left, rect.bottom); });
  group.addEventListener("blur", hideTip);
  return group;
}
if (data.tree) beams();
