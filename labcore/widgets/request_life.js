// A request's life: its tokens, its blocks, its steps. data: see request_life.py.
//
// A frame is a step: [doing, first position computed, tokens computed, tokens known, table, a note].

const DOING = { prompt: "of the prompt", decode: "of the answer", again: "again", keeps: "keeps its blocks", waits: "waits" };
const TOKENS = {
  done: "computed before", now: "computed in this step", known: "known, to be computed", new: "new, sampled in this step",
};

function buildLife(stage, model, to) {
  const { colour: request, block_size: size, num_prompt_tokens: prompt, pieces, tables, frames } = model.get("data");
  const first = model.get("first");
  stage.classList.add(colour(request));

  const chips = pieces.map((piece, position) => make("li", { class: "life-token" },
    make("span", { class: "life-piece replay-smooth" }, visible(piece)), make("small", {}, String(position))));
  const group = (name, from, until) => make("div", { class: "life-group" }, make("span", { class: "life-name" }, name),
    make("ol", { class: "life-tokens", "aria-label": `Tokens of the ${name}` }, ...chips.slice(from, until)));
  const text = make("div", { class: "life-text replay-scroll" }, group("prompt", 0, prompt), group("answer", prompt));
  const blocks = make("div", { class: "life-blocks replay-scroll" });

  const cells = frames.map(([doing, start, computed, , , note], i) => {
    const number = doing === "waits" ? "" : String(computed - start);
    const label = `step ${first + i}: ${number ? `${number} ` : ""}${DOING[doing]}${note ? `, ${note}` : ""}`;
    return quiet(make("button", { type: "button", tabindex: -1, "aria-label": label, title: label, onclick: () => to(i) },
      make("small", {}, String(first + i)), make("span", { class: `life-cell life-${doing}` }, note === "preempted" ? "×" : number)));
  });
  const strip = make("div", { class: "life-strip" }, ...cells);

  const legend = (...entries) => make("div", { class: "replay-legend" }, ...entries);
  const tokenKinds = Object.entries(TOKENS).map(([state, name]) =>
    make("span", { class: `life-${state}` }, make("span", { class: "life-piece" }), ` ${name}`));
  const stepKinds = Object.keys(DOING).filter((kind) => frames.some(([doing]) => doing === kind)).map((kind) =>
    make("span", {}, make("span", { class: `life-cell life-${kind}` }), ` ${DOING[kind]}`));
  stage.append(row("tokens", text, legend(...tokenKinds)), row("blocks", blocks),
    row("steps", strip, legend("tokens computed: ", ...stepKinds)));

  // A block of the table: its slots, each with the position that it is for.
  function block(id, place, start, computed) {
    const slots = Array.from({ length: size }, (_, i) => {
      const position = place * size + i;
      const state = position >= computed ? "empty" : position >= start ? "now" : "done";
      return make("span", { class: `life-slot life-${state}` }, state === "empty" ? "" : String(position));
    });
    const filled = Math.max(Math.min(computed - place * size, size), 0);
    return make("div", { class: "life-block", role: "img", "aria-label": `block ${id}: ${filled} of ${size} slots filled` },
      make("small", {}, `block ${id}`), make("div", { class: "life-slots" }, ...slots));
  }

  // Scrolls the tokens until one can be seen, and to where a row begins: the upper edge cuts none. The spare room at the end
  // is for the last ones.
  function revealToken(chip) {
    text.style.paddingBottom = "";
    if (text.scrollHeight <= text.clientHeight) return;
    text.style.paddingBottom = "3.5rem"; // more than a row
    reveal(text, chip);
    if (!text.scrollTop) return;
    const edge = text.getBoundingClientRect().top + 2; // its padding
    const least = chip.getBoundingClientRect().bottom - edge - text.clientHeight + 4; // else it would be cut below
    const most = text.scrollHeight - text.clientHeight - text.scrollTop;
    const rows = chips.map((other) => other.getBoundingClientRect().top - edge).filter((top) => top >= least && top <= most);
    if (rows.length) text.scrollTop += rows.reduce((best, top) => (Math.abs(top) < Math.abs(best) ? top : best));
  }

  function draw(at) {
    const [, start, computed, known, table] = frames[at];
    const before = at ? frames[at - 1][3] : prompt; // tokens known
    const state = (position) => {
      if (position >= known) return "unknown";
      if (position >= before) return "new";
      return position >= computed ? "known" : position >= start ? "now" : "done";
    };
    chips.forEach((chip, position) => { chip.className = `life-token life-${state(position)}`; });
    const held = tables[table].map((id, place) => block(id, place, start, computed));
    blocks.replaceChildren(...(held.length ? held : [make("span", { class: "life-none" }, "none")]));
    cells.forEach((cell, i) => cell.classList.toggle("life-current", i === at));
    reveal(strip, cells[at]);
    revealToken(chips[Math.max(computed - 1, 0)]);
    if (held.length) reveal(blocks, held[Math.max(Math.ceil(computed / size) - 1, 0)]);
  }
  return { draw };
}

export default player({ name: "life", build: buildLife });
