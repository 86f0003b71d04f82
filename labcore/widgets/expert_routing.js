// The routing of tokens: a box a token, a bar an expert. data: see expert_routing.py.
//
// experts[layer][token] are the experts of a token, the best one first, and percent their weights.

const EACH = 9; // pixels of a token in a bar, until the bars would be too long
const LONGEST = 260;

function buildExperts(stage, model) {
  const { pieces, num_experts: count, experts, percent } = model.get("data");
  const loads = experts.map((layer) => {
    const load = Array(count).fill(0);
    for (const expert of layer.flat()) load[expert] += 1;
    return load;
  });
  const unit = Math.min(EACH, LONGEST / Math.max(...loads.flat()));
  const mean = (pieces.length * experts[0][0].length) / count;
  const tokens = make("div", { class: "moe-tokens", role: "group", "aria-label": "Tokens: move with up and down, choose with Enter" });
  const bars = make("div", { class: "moe-bars", role: "group", "aria-label": "Experts: move with up and down, choose with Enter" });
  const line = make("div", { class: "moe-mean" });
  line.style.left = `calc(2.1rem + ${Math.round(unit * mean)}px)`;
  const chosen = make("p", { class: "moe-chosen", "aria-live": "polite" });
  let at = 0; // the layer that is shown
  let pick = null; // ["token", number], ["expert", number] or nothing

  const picked = (kind, number) => pick !== null && pick[0] === kind && pick[1] === number;
  const choose = (kind, number) => {
    pick = picked(kind, number) ? null : [kind, number];
    draw(at);
  };
  const boxes = pieces.map((piece, token) => {
    const numbers = make("span", { class: "moe-numbers" });
    const box = make("button", { type: "button", tabindex: token ? -1 : 0, onclick: () => choose("token", token) },
      make("span", { class: "moe-piece" }, visible(piece)), numbers);
    return { box, numbers };
  });
  const rows = Array.from({ length: count }, (_, expert) => {
    const fill = make("span", { class: "moe-fill replay-smooth" });
    const tally = make("small", {});
    const bar = make("button", { type: "button", tabindex: expert ? -1 : 0, onclick: () => choose("expert", expert) },
      make("b", {}, String(expert)), fill, tally);
    return { bar, fill, tally };
  });
  tokens.append(...boxes.map(({ box }) => box));
  bars.append(...rows.map(({ bar }) => bar), line);
  stage.append(row("tokens", tokens), row("experts", bars), chosen);

  const path = (token, layer) =>
    experts[layer][token].map((expert, rank) => `${expert} (${percent[layer][token][rank]}%)`).join(" and ");

  function told() {
    if (pick === null) return ["Choose a token or an expert: click it, or move to it with up and down and press Enter."];
    const [kind, number] = pick;
    if (kind === "expert") {
      const mine = pieces.filter((_, token) => experts[at][token].includes(number)).map(visible);
      return [`Expert ${number} has ${mine.length} of ${pieces.length} tokens in layer ${at}: `, mine.join("  ") || "none", "."];
    }
    const way = experts.map((_, layer) => make(layer === at ? "b" : "span", {}, `layer ${layer}: ${path(number, layer)}`));
    return [`“${visible(pieces[number])}” goes to `, ...way.flatMap((part) => [part, "; "]).slice(0, -1), "."];
  }

  function draw(index) {
    at = index;
    boxes.forEach(({ box, numbers }, token) => {
      const mine = experts[at][token];
      const far = pick?.[0] === "expert" && !mine.includes(pick[1]);
      box.className = `moe-token ${colour(mine[0])}${far ? " moe-far" : ""}`;
      box.setAttribute("aria-pressed", String(picked("token", token)));
      box.setAttribute("aria-label", `${visible(pieces[token])}: experts ${mine.join(", ")}`);
      numbers.replaceChildren(...mine.map((expert, rank) => make("span", { class: `moe-number ${colour(expert)} moe-rank-${Math.min(rank, 1)}` },
        String(expert))));
    });
    rows.forEach(({ bar, fill, tally }, expert) => {
      const far = pick?.[0] === "token" && !experts[at][pick[1]].includes(expert);
      bar.className = `moe-bar ${colour(expert)}${far ? " moe-far" : ""}`;
      bar.setAttribute("aria-pressed", String(picked("expert", expert)));
      bar.setAttribute("aria-label", `expert ${expert}: ${loads[at][expert]} tokens`);
      fill.style.width = `${Math.round(unit * loads[at][expert])}px`;
      tally.textContent = String(loads[at][expert]);
    });
    chosen.replaceChildren(...told());
  }

  // Inside the tokens, and inside the experts, up and down go from one to the next.
  function key(event) {
    const group = [boxes.map(({ box }) => box), rows.map(({ bar }) => bar)].find((some) => some.includes(event.target.closest("button")));
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!group || !by) return false;
    const next = group[group.indexOf(event.target.closest("button")) + by];
    if (next) {
      for (const each of group) each.tabIndex = each === next ? 0 : -1;
      next.focus();
    }
    return true;
  }
  return { draw, key };
}

export default player({ name: "experts", build: buildExperts });
