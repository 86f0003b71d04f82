// Accepted runs: the prompt, then the answer token by token, coloured by who said it. data: see accepted_runs.py.
//
// A step has the pieces that it brought, how many of them were accepted guesses, the guesses that fell, and where all of these
// were found: from, up to, counted over all known tokens.

const KINDS = { guess: "a guess that stood", own: "the model's own token", fell: "a guess that fell", prompt: "prompt" };

function buildRuns(stage, model, to) {
  const { prompt, steps } = model.get("data");
  const first = model.get("first");
  const piece = (kind, text, attributes = {}) => make("span", { class: `runs-piece runs-${kind}`, ...attributes }, visible(text));

  const said = prompt.map((text) => piece("prompt", text)); // every known token, in order
  const groups = steps.map(({ pieces, accepted, fell }, at) => {
    const label = `step ${first + at}`;
    const go = { title: label, onclick: () => to(at) };
    const own = pieces.map((text, i) => piece(i < accepted ? "guess" : "own", text, go));
    said.push(...own);
    const struck = fell.map((text) => make("s", { class: "runs-piece runs-fell", title: `${label}: fell` }, visible(text)));
    const group = make("span", { class: "runs-step" }, ...own.slice(0, accepted), ...struck, ...own.slice(accepted));
    return { group, struck };
  });
  const text = make("div", { class: "runs-text", tabindex: 0, role: "region", "aria-label": "Text" },
    ...said.slice(0, prompt.length), ...groups.map(({ group }) => group));
  const sample = ([kind, name]) => make(kind === "fell" ? "s" : "span", { class: `runs-piece runs-${kind}` }, name);
  stage.append(text, make("div", { class: "replay-legend" }, ...Object.entries(KINDS).map(sample)));

  function draw(at) {
    groups.forEach(({ group, struck }, step) => {
      group.hidden = step > at;
      group.classList.toggle("runs-now", step === at);
      for (const mark of struck) mark.hidden = step !== at;
    });
    const [from, end] = steps[at].found;
    said.forEach((mark, i) => mark.classList.toggle("runs-found", i >= from && i < end));
    reveal(text, groups[at].group);
  }
  return { draw };
}

export default player({ name: "runs", build: buildRuns });
