/* probabilities */
function chanceCell(one) {
  const chance = Math.exp(one.log_prob);
  return [element("span", { class: "chance", style: `width:calc(var(--bar) * ${chance.toFixed(3)})` }), `${(100 * chance).toFixed(1)} %`];
}

function probabilities() {
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...["", "token", "probability", "nearly"].map((name) => element("th", { scope: "col" }, name)))));
  const body = element("tbody");
  data.chosen.forEach((one, place) => {
    const near = one.near.filter((other) => other.token !== one.token).slice(0, 3);
    const others = near.map((other) => element("span", {}, `${shown(other.token)} ${(100 * Math.exp(other.log_prob)).toFixed(1)} %`));
    body.append(element("tr", {}, element("td", {}, String(place)), element("td", { title: one.token }, shown(one.token)), element("td", {}, ...chanceCell(one)),
      element("td", { class: "near" }, ...others)));
  });
  table.append(body);
  byId("word-view").append(table);
}
if (data.chosen) probabilities();

/* beams: a column a step, and below the beams of a step the outputs that ended with it */
const TREE = { wide: 112, tall: 40, margin: 78, box: 88 };

function beams() {
  const most = Math.max(...data.tree.map((column) => column.length), 1), below = {};
  const ended = data.outputs.map((one, rank) => {
    const lane = most + (below[one.end.step] = (below[one.end.step] ?? -1) + 1);
    return { ...one.end, lane, rank, best: rank === 0, near: [] };
  });
  const columns = Math.max(data.tree.length, ...ended.map((one) => one.step + 1));
  const rows = Math.max(most, ...ended.map((one) => one.lane + 1));
  const width = TREE.margin + columns * TREE.wide + 10, height = rows * TREE.tall + 16;
  const picture = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The beams, step by step from left to right" });
  picture.append(drawn("text", { x: 8, y: middle(0) + 4 }, shortened(shown(data.target[0] ?? ""), 7)));
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
  return drawn("path", { class: `link${best ? " best" : ""}`, d: `M${start},${left} C${bend},${left} ${bend},${right} ${x},${right}` });
}

function nodeOf(node) {
  const x = TREE.margin + node.step * TREE.wide, y = middle(node.lane), end = node.rank !== undefined;
  const others = node.near.map((other) => `${shown(other.token)} ${other.log_prob.toFixed(2)}`).join(", ");
  const first = end ? `Output ${node.rank + 1} ends with ${shown(node.token)}` : shown(node.token);
  const said = `${first}: ${node.log_prob.toFixed(3)}, in all ${node.total.toFixed(3)}${others ? `. Best here: ${others}` : ""}`;
  const group = drawn("g", { class: `node${node.best ? " best" : ""}${end ? " end" : ""}`, tabindex: "0", role: "img", "aria-label": said });
  group.append(drawn("rect", { x, y: y - 15, width: TREE.box, height: 30, rx: end ? 15 : 7 }),
    drawn("text", { x: x + (end ? 13 : 7), y: y - 1 }, end ? `${node.rank + 1}. ${shortened(shown(node.token), 8)}` : shortened(shown(node.token), 11)),
    drawn("text", { x: x + (end ? 13 : 7), y: y + 12, class: "dim", style: "font-size:10px" }, node.total.toFixed(2)));
  group.addEventListener("pointermove", (event) => tell(said, event.clientX, event.clientY));
  group.addEventListener("pointerleave", hush);
  group.addEventListener("focus", () => { const place = group.getBoundingClientRect(); tell(said, place.left, place.bottom); });
  group.addEventListener("blur", hush);
  return group;
}
if (data.tree) beams();
