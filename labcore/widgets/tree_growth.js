// The tree of prefixes: a line an edge, a box a block. data: see tree_growth.py.
//
// Of each step there are the blocks that left the cache and came into it.
// An edge is [number, depth, first position, place of its text, blocks, [[request, how many of them it holds], ...], domain].

function buildTree(stage, model) {
  const { block_size: size, names, texts, frames, kept } = model.get("data");
  const tree = make("div", { class: "tree", role: "group", "aria-label": "Edges: move with the arrow keys, choose with Enter" });
  const gone = make("p", { class: "tree-gone" });
  const chosen = make("p", { class: "tree-chosen", "aria-live": "polite" });
  const legend = make("div", { class: "replay-legend" }, ...[["held", "held"], ["held tree-several", "held by several"],
    ["idle", "idle: kept, held by nobody"], ["held tree-new", "+ came in this step"]].map(([kind, text]) =>
    make("span", {}, make("span", { class: `tree-block replay-colour-0 tree-${kind}` }), ` ${text}`)));
  stage.append(tree, gone, legend, chosen);
  let at = 0; // the frame that is shown
  let pick = null; // the number of the edge that is chosen

  const words = (list) => [list.slice(0, -1).join(", "), ...list.slice(-1)].filter(Boolean).join(" and ");

  function line(edge) {
    const [number, depth, start, text, blocks, who, domain] = edge;
    const boxes = blocks.map((block, i) => {
      const holders = who.filter(([, count]) => i < count).map(([request]) => request);
      const fresh = kept[at][1].includes(block); // it may have held another text before
      const kinds = [holders.length ? "tree-held" : "tree-idle", holders.length > 1 ? "tree-several" : "", fresh ? "tree-new" : ""];
      const title = `block ${block}: ${holders.length ? words(holders.map((r) => names[r])) : "idle"}`;
      return make("span", { class: `tree-block replay-smooth ${holders.length ? colour(holders[0]) : ""} ${kinds.join(" ")}`, title },
        `${fresh ? "+" : ""}${block}`);
    });
    const label = `edge from position ${start}: ${texts[text]}, ${blocks.length} blocks, ${who.length ? "held" : "idle"}`;
    const made = make("button", { type: "button", class: "tree-edge", tabindex: -1, "aria-label": label,
      "aria-pressed": String(number === pick), "data-number": number, onclick: () => choose(number) },
      make("span", { class: "tree-text" }, `${domain && !depth ? `[${domain}] ` : ""}${visible(texts[text])}`),
      make("small", {}, `${blocks.length * size}`), make("span", { class: "tree-blocks" }, ...boxes));
    made.style.setProperty("--depth", depth);
    return made;
  }

  function describe() {
    const edge = frames[at].find(([number]) => number === pick);
    if (pick === null) return "Choose an edge: click it, or move to it with the arrow keys and press Enter.";
    if (!edge) return "The edge that you chose is not in the tree in this step.";
    const [, , start, text, blocks, who, domain] = edge;
    const holders = who.map(([request, count]) => `${names[request]}${count < blocks.length ? ` (the first ${count})` : ""}`);
    const held = holders.length ? `held by ${words(holders)}` : "held by nobody";
    const where = `Positions ${start} to ${start + blocks.length * size - 1}, ${blocks.length === 1 ? "block" : "blocks"}`;
    return `${where} ${words(blocks)}, ${held}${domain ? `; only for ${domain}` : ""}. It says: ${visible(texts[text])}`;
  }

  function choose(number) {
    pick = pick === number ? null : number;
    const focused = tree.contains(document.activeElement);
    draw(at);
    if (focused) tree.querySelector(`[data-number="${number}"]`)?.focus();
  }

  function draw(index) {
    at = index;
    const edges = frames[index].map(line), [went] = kept[index];
    const first = edges.find((edge) => edge.dataset.number === String(pick)) ?? edges[0];
    if (first) first.tabIndex = 0;
    tree.replaceChildren(...(edges.length ? edges : ["The tree is empty."]));
    gone.textContent = went.length ? `Given up in this step: ${went.join(", ")}` : "";
    chosen.textContent = describe();
  }

  // Inside the tree, up and down go from edge to edge.
  function key(event) {
    const edges = [...tree.querySelectorAll(".tree-edge")], place = edges.indexOf(event.target.closest(".tree-edge"));
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (place < 0 || !by) return false;
    edges[place + by]?.focus();
    return true;
  }
  return { draw, key };
}

export default player({ name: "tree", build: buildTree });
