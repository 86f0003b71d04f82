// Shapes through a layer: the operators as a path, and the arrays of the one that is looked at. data: see layer_shapes.py.

const OPERATIONS = { // how the arrays of an operator come together: with its weight, and with what comes out
  linear: ["×", "="], embedding: ["picks from", "→"], rms_norm: ["with", "→"], add_rms_norm: ["with", "→"],
  rope: ["with rows of", "→"], store_kv: ["", "written as"],
};
const SHEETS = 4; // of a pile, at the most
const STEP = 5; // pixels from sheet to sheet

// The side of a rectangle in pixels: by the logarithm, so that 1 and 49,152 both can be seen.
const side = (length) => Math.round(10 + 8.5 * Math.log2(length));
const percent = (share) => (share < 0.01 ? "less than 1 %" : `${Math.round(100 * share)} %`);

function buildShapes(stage, model, to) {
  const { stops } = model.get("data");
  const sum = (key) => stops.reduce((total, stop) => total + (stop[key] ?? 0), 0);
  const totals = { weight_bytes: sum("weight_bytes"), flops: sum("flops") };
  const path = make("div", { class: "shapes-path", role: "group", "aria-label": "Operators" });
  const scene = make("div", { class: "shapes-scene" });
  const facts = make("div", { class: "shapes-facts" });
  const chips = stops.map((stop, i) => quiet(make("button",
    { type: "button", class: "shapes-stop replay-smooth", tabindex: -1, onclick: () => to(i) }, stop.name)));
  for (const part of new Set(stops.map((stop) => stop.part))) {
    path.append(row(part, make("div", { class: "shapes-chips" }, ...chips.filter((_, i) => stops[i].part === part))));
  }
  stage.append(path, scene, facts);
  // Every operator gets the same room, so that nothing jumps from step to step.
  const shapes = stops.flatMap((stop) => [...(stop.in ?? []), ...(stop.weight ?? []), ...(stop.out ?? [])]);
  const tallest = Math.max(...shapes.map((shape) => (shape.at(-2) ?? ["", 1])[1]));
  scene.style.setProperty("--tall", `${side(tallest) + STEP}px`);

  // An array: its last axis to the right, the one before it downward, further ones as a pile of sheets, four at most.
  function array(shape, kind) {
    const lengths = shape.map(([, length]) => length);
    const width = side(lengths.at(-1)), height = lengths.length > 1 ? side(lengths.at(-2)) : 10;
    const sheets = Math.min(lengths.slice(0, -2).reduce((product, length) => product * length, 1), SHEETS);
    const pile = make("div", { class: "shapes-pile", "aria-hidden": "true" });
    const sized = (element, more) => Object.assign(element.style, { width: `${width + more}px`, height: `${height + more}px` });
    sized(pile, STEP * (sheets - 1));
    for (let i = sheets - 1; i >= 0; i--) { // from the back
      const sheet = make("div", { class: `shapes-sheet shapes-${kind}` });
      Object.assign(sized(sheet, 0), { left: `${STEP * i}px`, bottom: `${STEP * i}px` });
      pile.append(sheet);
    }
    const signs = ["↗\ufe0e", "↗\ufe0e", "↓", "→"].slice(-lengths.length); // piled, downward, to the right
    const axes = shape.map(([axis, length], i) =>
      make("span", {}, `${signs[i]} `, make("b", {}, length.toLocaleString("en")), ` ${axis}`));
    const [room, names] = [make("div", { class: "shapes-room" }, pile), make("div", { class: "shapes-axes" }, ...axes)];
    return make("div", { class: "shapes-array" }, room, names);
  }

  function fact(name, value = 0, total = 0) {
    const share = total && value ? `, ${percent(value / total)} of all` : "";
    const number = make("b", {}, value.toLocaleString("en"));
    return make("div", {}, make("small", {}, name), make("div", {}, number, make("small", {}, share)));
  }

  const sign = (text) => make("span", { class: "shapes-sign" }, text);
  const between = (arrays, text) => arrays.flatMap((one, i) => (i ? [sign(text), one] : [one]));

  // Its arrays from left to right: in, weight, out. The KV pool is drawn as a weight: something that lies there.
  function arrays(stop) {
    const [into, gives] = OPERATIONS[stop.operator] ?? ["", "→"];
    const kind = (shape, other) => (shape[0][0] === "k and v" ? "weight" : other);
    const inputs = stop.in.map((shape) => array(shape, kind(shape, "in")));
    // y = x Wᵀ: turned so that its rows meet the columns of x
    const weights = (stop.weight ?? []).map((shape) => array(stop.operator === "linear" ? [...shape].reverse() : shape, "weight"));
    const outputs = stop.out.map((shape) => array(shape, kind(shape, "out")));
    return [...between(inputs, stop.operator === "add_rms_norm" ? "+" : "and"), ...weights.flatMap((one) => [sign(into), one]),
      sign(gives), ...between(outputs, "and")];
  }

  function draw(at) {
    const stop = stops[at];
    chips.forEach((chip, i) => {
      chip.classList.toggle("shapes-seen", i < at);
      chip.classList.toggle("shapes-current", i === at);
      if (i === at) chip.setAttribute("aria-current", "step");
      else chip.removeAttribute("aria-current");
    });
    scene.replaceChildren(make("code", { class: "shapes-operator" }, stop.operator || stop.name),
      ...(stop.rest ? [sign("the same operators, the same shapes")] : arrays(stop)));
    const pool = stop.operator === "store_kv" ? "bytes of KV written" : "bytes of KV read";
    facts.replaceChildren(fact("bytes of weights read", stop.weight_bytes, totals.weight_bytes), fact(pool, stop.kv_bytes),
      fact("FLOPs", stop.flops, totals.flops));
  }
  return { draw };
}

export default player({ name: "shapes", build: buildShapes });
