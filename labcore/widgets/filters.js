// The law of a token, rule by rule: bars before and after, and the draw. data: see filters.py.
//
// A place has, for each rule, the mass of the tokens that are shown and of all others, and which are kept.

function buildFilters(stage, model, to) {
  const { rules, places } = model.get("data");
  const chips = make("div", { class: "filter-chips" }), steps = make("div", { class: "filter-chips" });
  const lines = make("div", { class: "filter-lines" }), strip = make("div", { class: "filter-strip" });
  stage.append(row("answer", chips), row("rule", steps), row("tokens", lines), row("draw", strip));
  const percent = (mass) => `${(100 * mass).toFixed(1)}%`;
  const at = (place, rule) => place * rules.length + rule;
  const press = (kind, label, index, text) => quiet(make("button",
    { type: "button", tabindex: -1, class: `filter-chip ${kind}`, "aria-label": label, onclick: () => to(index) }, text));
  const answer = places.map(({ label }, place) => press("", `token ${place + 1}`, at(place, 0), visible(label)));
  chips.append(...answer);

  // A token, or all that are not shown: the mass before the rule and after it.
  function line({ label, before, mass, gone, chosen, widest }) {
    const outline = make("span", { class: "filter-before" }), fill = make("span", { class: "filter-after" });
    outline.style.width = `${(100 * before) / widest}%`;
    fill.style.width = `${(100 * mass) / widest}%`;
    const kind = `${gone ? " filter-gone" : ""}${chosen ? " filter-chosen" : ""}`;
    return make("div", { class: `filter-line${kind}` }, make("span", { class: "filter-piece", title: label }, label),
      make("span", { class: "filter-track" }, outline, fill), make("small", {}, gone ? "×" : percent(mass)));
  }

  function drawLines({ labels, laws, kept, others, chosen }, rule) {
    const drawing = rule === laws.length, now = Math.min(rule, laws.length - 1), before = Math.max(0, drawing ? now : now - 1);
    const widest = Math.max(...laws.flat()), rest = labels.length;
    const tokens = labels.map((label, i) => line({ label: visible(label), before: laws[before][i], mass: laws[now][i],
      gone: !kept[now][i], chosen: drawing && chosen === i, widest }));
    const number = others[now].toLocaleString("en");
    lines.replaceChildren(...tokens, line({ label: `${number} others`, before: laws[before][rest], mass: laws[now][rest],
      gone: !others[now], chosen: drawing && chosen === rest, widest }));
  }

  function drawStrip({ labels, spans, u }, drawing) {
    const parts = spans.map(([from, end, token], i) => {
      const label = token < 0 ? "others" : visible(labels[token]);
      const hit = drawing && u >= from && (u < end || i === spans.length - 1);
      const title = `${label}: ${from.toFixed(3)} to ${end.toFixed(3)}`;
      const part = make("span", { class: `filter-span${hit ? " filter-hit" : ""}`, title }, label);
      part.style.width = `${100 * (end - from)}%`;
      return part;
    });
    const arrow = make("span", { class: "filter-arrow", "aria-hidden": "true" }, `▲ ${u.toFixed(3)}`);
    arrow.style.left = `${100 * u}%`;
    arrow.classList.toggle("filter-left", u > 0.7); // its number stands on the left then
    strip.style.visibility = drawing ? "visible" : "hidden"; // its room stays: nothing jumps
    strip.replaceChildren(make("div", { class: "filter-spans" }, ...parts), make("div", { class: "filter-under" }, arrow));
  }

  function draw(index) {
    const place = Math.floor(index / rules.length), rule = index % rules.length;
    answer.forEach((chip, i) => {
      chip.classList.toggle("filter-now", i === place);
      chip.classList.toggle("filter-later", i > place || (i === place && rule < rules.length - 1));
    });
    steps.replaceChildren(...rules.map((name, i) =>
      press(i === rule ? "filter-now" : "", `rule ${name}`, at(place, i), name)));
    drawLines(places[place], rule);
    drawStrip(places[place], rule === rules.length - 1);
  }

  function key(event) {
    const by = { ArrowUp: -rules.length, ArrowDown: rules.length }[event.key], next = model.get("step") - model.get("first") + by;
    if (!by || event.target.closest("input") || next < 0 || next >= at(places.length, 0)) return false;
    to(next);
    return true;
  }
  return { draw, key };
}

export default player({ name: "filters", build: buildFilters });
