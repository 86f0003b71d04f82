// Bytes moved: the arrays in memory, which of them a loop reads and writes, and the sums so far. data: see bytes_moved.py.
//
// A step is [form, what the loop does, reads, writes, bytes of the unfused form so far, of the fused one].

const ARRAYS = ["x", "squares", "scaled", "out"];

function buildBytes(stage, model) {
  const { steps } = model.get("data");
  const most = Math.max(...steps.at(-1).slice(4));
  const boxes = ARRAYS.map((name) => make("span", { class: "bytes-box replay-smooth" }, name));
  const does = make("div", { class: "bytes-does" });
  const bars = [["unfused", 7], ["fused", 2]].map(([name, hue]) => { // not the colours of reading and writing
    const fill = make("div", { class: `bytes-fill replay-smooth ${colour(hue)}` });
    const number = make("small", {});
    return { fill, number, element: row(name, make("div", { class: "bytes-track" }, fill), number) };
  });
  stage.append(row("memory", make("div", { class: "bytes-boxes" }, ...boxes)), row("loop", does), ...bars.map((bar) => bar.element));

  function draw(at) {
    const [form, name, reads, writes, ...sums] = steps[at];
    const [read, cached] = [reads.split(" ")[0], reads.includes("cache")];
    boxes.forEach((box, i) => {
      const state = ARRAYS[i] === read ? (cached ? "cached" : "read") : ARRAYS[i] === writes ? "written" : "idle";
      box.className = `bytes-box replay-smooth bytes-${state}`;
      box.hidden = form === "fused" && !["x", "out"].includes(ARRAYS[i]); // it has no such arrays
    });
    does.replaceChildren(make("b", {}, `${form}: ${name}`), ` reads ${reads}, writes ${writes || "nothing"}`);
    bars.forEach((bar, i) => {
      bar.fill.style.width = `${(100 * sums[i]) / most}%`;
      bar.number.textContent = `${sums[i].toLocaleString("en")} bytes`;
    });
  }
  return { draw };
}

export default player({ name: "bytes", build: buildBytes });
