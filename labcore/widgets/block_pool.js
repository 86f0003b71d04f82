// The pool: a box a block, coloured by who holds it, with a bar of filled slots. data: see block_pool.py.
//
// A frame has an entry for each request that is there: [request, table, tokens computed, tokens known, doing, why it ended].
// Of each step there are the copies that it made, [from, to], and the blocks that left the prefix cache and came into it.

const KINDS = ["held", "cached", "free"];
const words = (list) => [list.slice(0, -1).join(", "), ...list.slice(-1)].filter(Boolean).join(" and ");

function buildPool(stage, model) {
  const { block_size: size, num_blocks: total, num_drawn: drawn, names, tables, frames } = model.get("data");
  const { copied = [], kept = [] } = model.get("data"); // a trace of long ago has none
  const caches = []; // of each step, the blocks that the prefix cache keeps
  for (const [went, came] of kept) caches.push(new Set([...(caches.at(-1) ?? [])].filter((id) => !went.includes(id)).concat(came)));
  const counts = model.get("rows"); // of each step: as KINDS
  const requests = make("div", { class: "pool-requests" });
  const usage = make("div", { class: "pool-usage", "aria-hidden": "true" },
    ...KINDS.map((kind) => make("span", { class: `pool-${kind}` })));
  const legend = (text = "") => make("div", { class: "replay-legend" }, text);
  const counted = legend();
  const grid = make("div", { class: `pool-grid${drawn > 48 ? " pool-large" : ""}`, role: "group",
    "aria-label": "Blocks: move with the arrow keys, choose with Enter" });
  const rest = legend(`and ${(total - drawn).toLocaleString("en")} more, which nobody ever held`);
  const chosen = make("p", { class: "pool-chosen", "aria-live": "polite" });
  let pick = null; // the block that is chosen
  let at = 0; // the frame that is shown

  const boxes = Array.from({ length: drawn }, (_, id) => {
    const part = (name, tag = "span") => make(tag, { class: `pool-${name}` });
    const parts = { sign: part("sign", "small"), name: part("name"), bar: part("bar") };
    const box = make("button", { type: "button", tabindex: id ? -1 : 0, onclick: () => choose(id) },
      make("small", {}, String(id)), parts.sign, parts.name, parts.bar);
    return Object.assign(box, { parts });
  });
  grid.append(...boxes);
  stage.append(requests, usage, counted, grid, drawn < total ? rest : "", chosen);

  // What tells the requests apart: of request-0 and request-1, a box shows 0 and 1.
  const longest = Math.max(0, ...names.map((name) => name.length));
  const alike = [...(names[0] ?? "")].findIndex((letter, i) => names.some((name) => name[i] !== letter || name.length <= i + 1));
  const brief = (request) => names[request].slice(names.length > 1 && longest > 4 && alike > 2 ? alike : 0);

  // Who holds a block in a frame, from which position on; those who end with the step no longer do.
  function holders(frame, id) {
    return frame.flatMap(([request, table, computed, , , ended]) => {
      const start = tables[table].indexOf(id) * size;
      if (ended || start < 0) return [];
      return [{ request, start, filled: Math.max(Math.min(computed - start, size), 0) }];
    });
  }

  // Who gave a block back in this step: who held it before, or came and ended in it.
  function leavers(id) {
    const before = at ? holders(frames[at - 1], id).map(({ request }) => request) : [];
    const ended = frames[at].filter(([, table, , , , why]) => why && tables[table].includes(id)).map(([request]) => request);
    return [...before, ...ended];
  }

  const filledOf = (now) => Math.max(0, ...now.map(({ filled }) => filled));
  const isKept = (id) => caches[at]?.has(id) ?? false;
  const source = (id) => copied[at]?.find(([, to]) => to === id)?.[0];

  // What happened to a block in this step: copied from another, taken, shared by more than before, given back.
  function signOf(id, now, left, fresh) {
    if (fresh) return source(id) === undefined ? "+" : `←${source(id)}`;
    const more = now.filter(({ request }) => !left.includes(request)).length;
    return more ? `+${more}` : !now.length && left.length ? "−" : "";
  }

  function drawBox(box, id) {
    const now = holders(frames[at], id), left = leavers(id), gone = !now.length && left.length > 0;
    const fresh = now.length > 0 && !now.some(({ request }) => left.includes(request));
    const owner = now[0]?.request ?? left[0];
    box.className = "pool-block replay-smooth";
    if (owner !== undefined) box.classList.add(colour(owner), gone ? "pool-left" : "pool-taken");
    box.classList.toggle("pool-shared", now.length > 1);
    box.classList.toggle("pool-fresh", fresh);
    box.classList.toggle("pool-idle", isKept(id) && !now.length);
    box.classList.toggle("pool-both", isKept(id) && now.length > 0);
    if (now.length > 1) box.style.setProperty("--second", `var(--hue-${now[1].request % 8})`);
    const { name, sign, bar } = box.parts;
    const all = now.map(({ request }) => brief(request)).join("+");
    name.textContent = now.length > 2 && all.length > 5 ? `${brief(owner)}+${now.length - 1}` : all;
    if (!now.length) name.textContent = gone ? brief(owner) : isKept(id) ? "kept" : "";
    sign.textContent = signOf(id, now, left, fresh);
    bar.style.setProperty("--filled", `${(100 * filledOf(now)) / size}%`);
    const who = words(now.map(({ request }) => names[request]));
    const state = who ? `${who}, ${filledOf(now)} of ${size} slots filled` : gone ? "given back" : "not held";
    box.setAttribute("aria-label", `block ${id}: ${state}${isKept(id) ? ", kept by the prefix cache" : ""}`);
    box.setAttribute("aria-pressed", String(id === pick));
  }

  function describe() {
    if (pick === null) return "Choose a block: click it, or move to it with the arrow keys and press Enter.";
    const now = holders(frames[at], pick), filled = filledOf(now), from = source(pick);
    if (!now.length) return `Block ${pick}: nobody holds it; ${isKept(pick) ? "the prefix cache keeps it" : "it is free"}.`;
    const { start } = now[0]; // a block that is shared holds the same positions of all its holders
    const who = `${words(now.map(({ request }) => names[request]))} ${now.length > 1 ? "hold" : "holds"}`;
    const state = filled === size ? "all computed" : filled ? `${filled} of ${size} computed` : "none computed yet";
    const more = `${from === undefined ? "" : ` Copied from block ${from}.`}${isKept(pick) ? " The prefix cache keeps it, too." : ""}`;
    return `Block ${pick}: ${who} positions ${start} to ${start + size - 1} in it, ${state}.${more}`;
  }

  function choose(id) {
    pick = pick === id ? null : id;
    boxes.forEach((box, i) => {
      box.setAttribute("aria-pressed", String(i === pick));
      box.tabIndex = i === id ? 0 : -1; // the arrow keys start where the reader has been
    });
    chosen.textContent = describe();
  }

  function request([which, , computed, known, doing, ended]) {
    const state = ended ? `ended: ${ended.replaceAll("_", " ")}` : doing === "waits" ? "waits" : `${computed} of ${known} computed`;
    const away = ended || doing === "waits" ? " pool-away" : "";
    return make("span", { class: `pool-request ${colour(which)}${away}` }, make("b", {}, names[which]), ` ${state}`);
  }

  function draw(index) {
    at = index;
    requests.replaceChildren(...(frames[at].length ? frames[at].map(request) : ["no requests"]));
    KINDS.forEach((kind, i) => { usage.children[i].style.flexGrow = counts[at][i]; });
    const told = KINDS.map((kind, i) => [i, `${counts[at][i].toLocaleString("en")} ${kind}`]);
    counted.textContent = told.filter(([i]) => i !== 1 || counts.some((row) => row[1])).map(([, text]) => text).join(", ");
    boxes.forEach(drawBox);
    chosen.textContent = describe();
  }

  // Inside the grid the arrows go from block to block.
  function key(event) {
    const id = boxes.indexOf(event.target.closest(".pool-block"));
    const columns = boxes.filter((box) => box.offsetTop === boxes[0].offsetTop).length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (id < 0 || event.shiftKey || !by) return false;
    const next = boxes[id + by];
    if (next) {
      boxes[id].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    return true;
  }
  return { draw, key };
}

export default player({ name: "pool", build: buildPool });
