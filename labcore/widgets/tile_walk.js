// The tile walk: a column a key, above its score, below its share of the attention so far. data: see tile_walk.py.
//
// A step is [first key, end, largest score so far, factor of what was kept, sum so far].

const HIGH = 90; // pixels of the tallest bar

function buildWalk(stage, model, to) {
  const { scores, steps } = model.get("data");
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const height = (score) => `${Math.round(8 + ((HIGH - 8) * (score - low)) / (high - low || 1))}px`;
  const line = make("div", { class: "walk-line" });
  const columns = (kind, label) => {
    const bars = scores.map((_, key) => make("span", { class: "walk-bar replay-smooth", title: `key ${key}` }));
    const cells = bars.map((bar, key) => make("button", { type: "button", tabindex: -1, class: "walk-cell", "aria-label": `key ${key}`,
      onclick: () => to(steps.findIndex(([, end]) => key < end)) }, bar, make("small", {}, String(key))));
    const element = make("div", { class: `walk-columns walk-${kind}`, role: "group", "aria-label": label }, ...cells.map(quiet));
    element.style.setProperty("--keys", scores.length);
    return { bars, cells, element };
  };
  const above = columns("scores", "Scores"), below = columns("shares", "Shares of the attention");
  above.element.append(line);
  const facts = make("div", { class: "walk-facts" });
  stage.classList.add(colour(0));
  stage.append(row("scores", above.element), row("shares", below.element), row("kept", facts));
  const fact = (name, value) => make("div", {}, make("small", {}, name), make("div", {}, make("b", {}, value)));

  function draw(at) {
    const [start, end, largest, , total] = steps[at];
    const [, , ...kept] = model.get("rows")[at]; // as the table has them
    const share = scores.map((score, key) => (key < end ? Math.exp(score - largest) / total : 0));
    above.bars.forEach((bar, key) => {
      const state = key >= end ? "unseen" : key >= start ? "now" : "done";
      bar.className = `walk-bar replay-smooth walk-${state}`;
      bar.style.height = key < end ? height(scores[key]) : "8px";
      below.bars[key].className = `walk-bar replay-smooth walk-${state}`;
      below.bars[key].style.height = `${Math.round(HIGH * share[key])}px`;
    });
    line.style.bottom = `calc(0.86rem + ${height(largest)})`;
    for (const { element, cells } of [above, below]) reveal(element, cells[end - 1]);
    const names = ["largest so far", "what was kept is scaled by", "sum of e to (score − largest)"];
    facts.replaceChildren(...names.map((name, i) => fact(name, kept[i])));
  }
  return { draw };
}

export default player({ name: "walk", build: buildWalk });
