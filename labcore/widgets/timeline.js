// The timeline: a column a step, a row a request, bars of the tokens below. data: see timeline.py.
//
// A frame has an entry for each request that is there: [request, doing, tokens computed, why it ended or "preempted"].

const DOES = { prompt: "of the prompt", decode: "of the answer", again: "again", keeps: "keeps its blocks", waits: "waits" };
const TALL = 56; // pixels of the tallest bar

function buildTimeline(stage, model, to) {
  const { names, frames } = model.get("data");
  const first = model.get("first"), tokens = model.get("rows").map((facts) => facts.at(-1));
  const most = Math.max(1, ...tokens);
  const columns = frames.map(() => []); // of each step, all that lies in its column

  const place = (element, step, line) => {
    element.style.gridColumn = step + 2;
    element.style.gridRow = line;
    columns[step].push(element);
    return element;
  };
  const press = (step, label, kind, ...content) => quiet(make("button",
    { type: "button", tabindex: -1, class: kind, title: label, "aria-label": label, onclick: () => to(step) }, ...content));

  function cell([request, doing, count, note], step) {
    const number = count ? `${count} ` : "";
    const label = `${names[request]}, step ${first + step}: ${number}${DOES[doing]}${note ? `, ${note.replaceAll("_", " ")}` : ""}`;
    const ended = note && note !== "preempted" ? " time-ended" : "";
    const sign = note === "preempted" ? "×" : count ? String(count) : ended ? "end" : "";
    return place(press(step, label, `time-cell time-${doing} ${colour(request)}${ended}`, sign), step, request + 2);
  }

  function bar(count, step) {
    const fill = make("span", { class: "time-fill" });
    fill.style.height = `${Math.round((TALL * count) / most)}px`;
    return place(press(step, `step ${first + step}: ${count} tokens`, "time-bar", make("small", {}, String(count)), fill),
      step, names.length + 2);
  }

  const labels = names.map((name, request) => {
    const label = make("span", { class: `time-name ${colour(request)}`, title: name }, name);
    label.style.gridRow = request + 2;
    return label;
  });
  const beside = ["step", "tokens"].map((name, last) => { // the first and the last line
    const label = make("span", { class: "time-name" }, name);
    label.style.gridRow = last ? names.length + 2 : 1;
    return label;
  });
  const grid = make("div", { class: "time-grid" }, ...labels, ...beside,
    ...frames.map((_, step) => place(make("small", { class: "time-step" }, String(first + step)), step, 1)),
    ...frames.flatMap((frame, step) => frame.map((entry) => cell(entry, step))), ...tokens.map(bar));
  grid.style.setProperty("--steps", frames.length);

  const cursor = make("span", { class: "time-cursor", "aria-hidden": "true" });
  cursor.style.gridRow = `1 / ${names.length + 3}`;
  grid.append(cursor);
  const scroll = make("div", { class: "time-scroll" }, grid);
  const kinds = Object.entries(DOES).filter(([kind]) => frames.some((frame) => frame.some(([, doing]) => doing === kind)));
  const sample = ([kind, name]) => make("span", {}, make("span", { class: `time-cell time-${kind} ${colour(0)}` }), ` ${name}`);
  stage.append(scroll, make("div", { class: "replay-legend" }, ...kinds.map(sample)));

  function draw(at) {
    cursor.style.gridColumn = at + 2;
    columns.forEach((parts, step) => { for (const part of parts) part.classList.toggle("time-now", step === at); });
    const left = beside[0].offsetWidth; // the names stay where they are and cover what scrolls
    const part = columns[at][0], begin = part.offsetLeft - scroll.scrollLeft;
    if (begin < left || begin + part.offsetWidth > scroll.clientWidth) scroll.scrollLeft = part.offsetLeft - left - scroll.clientWidth / 4;
  }
  return { draw };
}

export default player({ name: "timeline", build: buildTimeline });
