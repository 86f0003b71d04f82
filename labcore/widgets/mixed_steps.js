// Mixed steps: stacked bars of tokens by request, the budget as a line, the shares of the chosen step. data: see mixed_steps.py.
//
// A frame has an entry for each request that runs: [request, doing, tokens computed].

const DOES = { prompt: "of the prompt", decode: "of the answer", again: "again" };
const HIGH = 140; // pixels of the budget, or of the tallest step

function buildMixed(stage, model, to) {
  const { names, budget, frames } = model.get("data");
  const first = model.get("first"), facts = model.get("rows");
  const sums = facts.map((row) => row.at(-2));
  const most = Math.max(1, ...sums);
  const scale = HIGH / (budget > 3 * most ? most : Math.max(budget, most)); // a budget far above all steps is told, not drawn

  const part = ([request, doing, tokens], side, size) => {
    const element = make("span", { class: `mixed-part mixed-${doing} ${colour(request)}` });
    element.style[side] = size;
    return Object.assign(element, { title: `${names[request]}: ${tokens} ${DOES[doing]}` });
  };
  const bars = frames.map((frame, step) => {
    const stack = make("span", { class: "mixed-stack" },
      ...frame.map((share) => part(share, "height", `${Math.max(2, Math.round(scale * share[2]))}px`)));
    const label = `step ${first + step}: ${sums[step]} tokens`;
    return quiet(make("button", { type: "button", tabindex: -1, class: "mixed-bar", title: label, "aria-label": label,
      onclick: () => to(step) }, make("small", {}, String(sums[step])), stack, make("small", {}, String(first + step))));
  });
  const chart = make("div", { class: "mixed-chart" }, ...bars);
  chart.style.setProperty("--steps", frames.length);
  if (scale * budget <= HIGH + 1) {
    const line = make("div", { class: "mixed-budget" });
    line.style.bottom = `calc(0.864rem + 1px + ${Math.round(scale * budget)}px)`;
    chart.append(line);
  }
  const shares = make("div", { class: "mixed-shares", "aria-hidden": "true" });
  const list = make("div", { class: "replay-legend mixed-list" });
  const kinds = Object.entries(DOES).filter(([kind]) => frames.some((frame) => frame.some(([, doing]) => doing === kind)));
  const sample = ([kind, name]) => make("span", {}, make("span", { class: `mixed-part mixed-${kind} ${colour(0)}` }), ` ${name}`);
  const limit = make("span", {}, make("span", { class: "mixed-dash" }), ` budget: ${budget.toLocaleString("en")} tokens`);
  stage.append(make("div", { class: "mixed-scroll" }, chart), make("div", { class: "replay-legend" }, ...kinds.map(sample), limit),
    row("shares", shares, list));

  function draw(at) {
    const left = Math.max(0, facts[at].at(-1));
    const rest = make("span", { class: "mixed-part mixed-rest", title: `${left} left of the budget` });
    rest.style.flexGrow = left;
    shares.replaceChildren(...frames[at].map((share) => part(share, "flexGrow", share[2])), ...(left ? [rest] : []));
    const told = frames[at].map((share) => make("span", {}, part(share, "width", "1.1rem"),
      make("b", {}, ` ${names[share[0]]} `), `${share[2]} ${DOES[share[1]]}`));
    list.replaceChildren(...told, make("span", {}, `${left} left of the budget`));
    bars.forEach((bar, step) => {
      bar.classList.toggle("mixed-now", step === at);
      if (step === at) reveal(bar.parentElement.parentElement, bar);
    });
  }
  return { draw };
}

export default player({ name: "mixed", build: buildMixed });
