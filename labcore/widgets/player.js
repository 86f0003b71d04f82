// The player around every replay: buttons, scrubber, keys, a link to a step, the words and the table.
//
// A view is { name, build }. build(stage, model, go) fills the element `stage` once and returns { draw(index), key(event) }:
// draw shows a step (0 is the first); key, which may be absent, returns true for a key that the view has used itself.
// All text comes from a trace and is set as text, never as HTML.

const ICONS = {
  first: "M4 4h2v12H4zM16 4v12L7 10z",
  back: "M14 4v12L5 10z",
  play: "M6 4v12l10-6z",
  pause: "M5 4h4v12H5zM11 4h4v12h-4z",
  forward: "M6 4v12l9-6z",
  last: "M14 4h2v12h-2zM4 4v12l9-6z",
};
const SPEEDS = [0.5, 1, 2, 4];
const MILLISECONDS = 1100; // a step at speed 1: time to read a short sentence
const SVG = "http://www.w3.org/2000/svg";
// Keys that a replay may use. While the focus is inside, nobody else sees those that it does use: not the page, not the
// command mode of JupyterLab.
const KEYS = "ArrowLeft ArrowRight ArrowUp ArrowDown PageUp PageDown Home End Enter + = -".split(" ").concat(" ");

// An element with attributes and children. Strings become text nodes.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// The colour of a request, the same in every replay: replay.css has a ground and an ink for each of eight.
const colour = (request) => `replay-colour-${request % 8}`;

// A piece of text as it can be seen: spaces and line ends have signs.
const visible = (piece) => piece.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";

// A mouse does not move the focus onto such a button, but onto the replay: Space then still means play.
function quiet(made) {
  made.addEventListener("mousedown", (event) => {
    event.preventDefault();
    made.closest(".replay").focus({ preventScroll: true });
  });
  return made;
}

function button(label, name, act) {
  const attributes = { type: "button", class: "replay-button", "aria-label": label, title: label, onclick: act };
  return quiet(make("button", attributes, icon(name)));
}

// A line of a stage: its name on the left, or above where there is little room.
const row = (name, ...content) =>
  make("div", { class: "replay-row" }, make("div", { class: "replay-label" }, name), make("div", {}, ...content));

// Scrolls an area, and never the page, until a part of it can be seen.
function reveal(area, part) {
  const outer = area.getBoundingClientRect(), inner = part.getBoundingClientRect();
  const [left, top] = [inner.left - outer.left, inner.top - outer.top];
  if (left < 0 || left + inner.width > area.clientWidth) area.scrollLeft += left - area.clientWidth / 3;
  if (top < 0 || top + inner.height > area.clientHeight) area.scrollTop += top - area.clientHeight / 3;
}

// The text equivalent of all steps, folded; the row of the present step is marked.
function table(model, first, unit) {
  const says = model.get("says");
  const head = [unit, ...model.get("columns"), "what happens"].map((name) => make("th", { scope: "col" }, name));
  const rows = model.get("rows").map((facts, i) => {
    const cells = [...facts, says[i]].map((cell) => make("td", {}, String(cell)));
    return make("tr", {}, make("th", { scope: "row" }, String(first + i)), ...cells);
  });
  const whole = make("table", {}, make("caption", {}, model.get("title")),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  const region = make("div", { class: "replay-scroll", tabindex: 0, role: "region", "aria-label": "Table" }, whole);
  const element = make("details", { class: "replay-details" }, make("summary", {}, `All ${unit}s as a table`), region);
  const mark = (at) => {
    for (const marked of whole.querySelectorAll("[aria-current]")) marked.removeAttribute("aria-current");
    rows[at].setAttribute("aria-current", "step");
  };
  return { element, mark };
}

function keysHelp() {
  const help = { Space: "play, pause", "← →": "a step", "Shift ← →": "ten steps", "Home End": "first, last", "+ −": "speed" };
  const text = Object.entries(help).flatMap(([keys, does]) => [make("kbd", {}, keys), ` ${does}  `]);
  return make("details", { class: "replay-details" }, make("summary", {}, "Keys"),
    make("p", { class: "replay-keys" }, "While the focus is in the replay: ", ...text));
}

// Calls tick() at its speed until tick says that this was the last time; tells changed() when it starts and stops.
function clock(tick, changed) {
  let timer = null;
  const time = {
    speed: 1,
    get runs() { return timer !== null; },
    start() {
      clearInterval(timer);
      timer = setInterval(() => { if (!tick()) time.stop(); }, MILLISECONDS / time.speed);
      changed();
    },
    stop() {
      clearInterval(timer);
      timer = null;
      changed();
    },
    atSpeed(speed) {
      time.speed = speed;
      if (time.runs) time.start();
    },
  };
  return time;
}

// The row of controls. `does` has what they do: play, to(index), at() and last, the greatest index.
function controls(unit, does, time) {
  const playing = button("Play", "play", does.play);
  playing.classList.add("replay-play");
  const backs = [button(`First ${unit} (Home)`, "first", () => does.to(0)),
    button("Back (Left)", "back", () => does.to(does.at() - 1))];
  const forwards = [button("Forward (Right)", "forward", () => does.to(does.at() + 1)),
    button(`Last ${unit} (End)`, "last", () => does.to(does.last))];
  const range = make("input", { type: "range", class: "replay-range", min: 0, max: does.last, step: 1, "aria-label": unit,
    oninput: () => does.to(Number(range.value)) });
  const speeds = make("select", { class: "replay-speed", "aria-label": "Speed", title: "Speed (+ and -)",
    onchange: () => time.atSpeed(Number(speeds.value)) },
    ...SPEEDS.map((value) => make("option", { value }, `${value}×`.replace("0.5", "½"))));
  speeds.value = "1";
  const buttons = make("span", { class: "replay-buttons" }, ...backs, playing, ...forwards);
  return {
    element: make("div", { class: "replay-bar" }, buttons, range, speeds),
    range,
    changeSpeed(by) {
      const next = SPEEDS[Math.min(Math.max(SPEEDS.indexOf(time.speed) + by, 0), SPEEDS.length - 1)];
      speeds.value = String(next);
      time.atSpeed(next);
    },
    drawPlay() {
      const label = time.runs ? "Pause" : "Play";
      playing.replaceChildren(icon(label.toLowerCase()));
      playing.setAttribute("aria-label", label);
      playing.title = `${label} (Space)`;
    },
    draw(at, text) {
      range.value = at;
      range.setAttribute("aria-valuetext", text);
      // not `disabled`, which would take the focus away from whoever has come to the end by keyboard
      for (const made of backs) made.setAttribute("aria-disabled", at === 0);
      for (const made of forwards) made.setAttribute("aria-disabled", at === does.last);
    },
  };
}

// In a static page the address may name a step, `#link=12`: go there, now and whenever it changes. A button makes such an
// address. Returns the way to stop that.
function followAddress(root, link, number, go) {
  const read = () => {
    const step = new URLSearchParams(location.hash.slice(1)).get(link);
    if (step === null || !/^\d+$/.test(step)) return;
    go(Number(step));
    const show = () => root.scrollIntoView({ block: "start" });
    show();
    // and again when pictures and formulas have changed the height of the page
    if (document.readyState !== "complete") window.addEventListener("load", () => setTimeout(show), { once: true });
  };
  const copy = async () => {
    history.replaceState(null, "", `#${link}=${number()}`); // no entry in the history for each step
    // where the clipboard is closed to us, the address bar has it
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    made.textContent = copied ? "Copied" : "In the address";
    setTimeout(() => { made.textContent = "Link"; }, 2000);
  };
  const attributes = { type: "button", class: "replay-link", title: "Copy the address of this step", onclick: copy };
  const made = make("button", attributes, "Link");
  root.querySelector(".replay-bar").append(made);
  window.addEventListener("hashchange", read);
  read();
  return () => window.removeEventListener("hashchange", read);
}

// The widget of a view, as anywidget wants it.
function player(view) {
  function render({ model, el }) {
    const title = model.get("title"), first = model.get("first"), unit = model.get("unit"), says = model.get("says");
    const last = says.length - 1;
    const within = (at) => Math.min(Math.max(at, 0), last);
    const at = () => within(model.get("step") - first);
    const go = (to) => {
      model.set("step", first + within(to));
      model.save_changes();
    };
    const to = (index) => { // by hand
      time.stop();
      go(index);
    };
    const play = () => {
      if (time.runs) return time.stop();
      if (at() === last) go(0);
      time.start();
    };
    const time = clock(() => {
      if (root.isConnected) go(at() + 1);
      return root.isConnected && at() < last;
    }, () => {
      bar.drawPlay();
      // a screen reader speaks each step that the reader makes, and not a stream of them
      said.setAttribute("aria-live", time.runs ? "off" : "polite");
    });

    const bar = controls(unit, { play, to, at, last }, time);
    const counter = make("span", { class: "replay-counter" });
    const said = make("p", { class: "replay-says", "aria-live": "polite" });
    const stage = make("div", { class: "replay-stage" });
    const facts = table(model, first, unit);
    const names = { class: `replay replay-${view.name}`, role: "group", "aria-label": `Replay: ${title}`, tabindex: -1 };
    const root = make("div", names,
      make("div", { class: "replay-head" }, make("span", { class: "replay-title" }, title), counter),
      bar.element, said, stage,
      make("p", { class: "replay-caption" }, make("b", {}, "How to read it. "), model.get("caption")),
      keysHelp(), facts.element);
    el.replaceChildren(root);
    const drawn = view.build(stage, model, to);

    function draw() {
      const index = at();
      counter.textContent = `${unit} ${first + index} of ${first + last}`;
      said.textContent = says[index];
      bar.draw(index, counter.textContent);
      facts.mark(index);
      drawn.draw(index);
    }

    function key(event) {
      const { target } = event;
      if (!root.contains(target) || event.ctrlKey || event.metaKey || event.altKey || !KEYS.includes(event.key)) return;
      const pressed = target.closest("button") && [" ", "Enter"].includes(event.key);
      if (pressed || target.closest("select, summary, .replay-scroll")) return event.stopPropagation(); // the browser acts
      const jump = event.shiftKey ? 10 : 1;
      const acts = {
        ArrowLeft: () => to(at() - jump), ArrowRight: () => to(at() + jump),
        PageDown: () => to(at() - 10), PageUp: () => to(at() + 10), // as on every slider
        Home: () => to(0), End: () => to(last),
        " ": play, "+": () => bar.changeSpeed(1), "=": () => bar.changeSpeed(1), "-": () => bar.changeSpeed(-1),
      };
      if (target === bar.range) Object.assign(acts, { ArrowDown: acts.ArrowLeft, ArrowUp: acts.ArrowRight });
      if (!drawn.key?.(event)) {
        if (!acts[event.key]) return;
        acts[event.key]();
      }
      event.preventDefault();
      event.stopPropagation();
    }
    // On the window and before all others: JupyterLab listens on the document in the capturing phase, so that a key which
    // came through to this element would have moved the notebook's selection already.
    window.addEventListener("keydown", key, true);
    const unfold = () => { facts.element.open = true; };
    window.addEventListener("beforeprint", unfold);
    model.on("change:step", draw);
    bar.drawPlay();
    draw();
    // the runtime of static pages marks the element
    const follow = () => followAddress(root, model.get("link"), () => first + at(), (step) => to(step - first));
    const unfollow = "page" in el.dataset ? follow() : () => {};
    return () => {
      time.stop();
      unfollow();
      model.off("change:step", draw);
      window.removeEventListener("keydown", key, true);
      window.removeEventListener("beforeprint", unfold);
    };
  }
  return { render };
}
