// Shows the anywidgets of a page from the state that was stored with it: no kernel, no network, no require.js.
//
// The book's extension (book/_ext/labbook.py) writes the state with each long value only once: where a model has
// {"$shared": [2, 5]}, its value is shared[2] + shared[5] (texts are joined; a single value is taken as it is).
// Only anywidgets are drawn. A widget that fails says so in its place, and the others go on.
(() => {
  const STATE = "application/vnd.jupyter.widget-state+json";
  const VIEW = "application/vnd.jupyter.widget-view+json";
  const modules = new Map(); // by source: all widgets of a kind share one module

  function resolve(value, shared) {
    const parts = value?.$shared?.map((i) => shared[i]);
    if (!parts) return value;
    return parts.length === 1 ? parts[0] : parts.join("");
  }

  function load(source) {
    if (!modules.has(source)) {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      modules.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
    }
    return modules.get(source);
  }

  // The part of a Jupyter model that anywidgets use. There is nobody to save changes for, or to send messages to.
  function makeModel(state) {
    const handlers = new Map();
    const emit = (name, ...about) => [...(handlers.get(name) ?? [])].forEach((handler) => handler(...about));
    const model = {
      get: (name) => state[name],
      set(name, value) {
        if (typeof name === "object") return Object.entries(name).forEach(([key, one]) => model.set(key, one));
        if (Object.is(state[name], value)) return;
        state[name] = value;
        emit(`change:${name}`, model, value);
        emit("change", model);
      },
      on(names, handler) {
        for (const name of names.split(" ")) handlers.set(name, [...(handlers.get(name) ?? []), handler]);
      },
      off(name, handler) {
        if (!name) handlers.clear();
        else handlers.set(name, handler ? (handlers.get(name) ?? []).filter((one) => one !== handler) : []);
      },
      save_changes() {},
      send() {},
      widget_manager: { get_model: () => Promise.reject(new Error("a static page has no other models")) },
    };
    return model;
  }

  // One model for each id, however many views show it.
  const live = new Map();
  function open(id, state) {
    if (!live.has(id)) {
      live.set(id, (async () => {
        const model = makeModel(state);
        let widget = (await load(state._esm)).default;
        if (typeof widget === "function") widget = await widget();
        const cleanup = await widget.initialize?.({ model });
        return { model, widget, cleanups: cleanup ? [cleanup] : [] };
      })());
    }
    return live.get(id);
  }

  async function show(script, states) {
    const id = JSON.parse(script.textContent).model_id;
    if (!states.has(id)) return;
    const el = document.createElement("div");
    el.className = "anywidget-static";
    el.dataset.page = ""; // tells a widget that it stands in a page of its own, whose address it may use
    script.after(el);
    try {
      const { model, widget, cleanups } = await open(id, states.get(id));
      const cleanup = await widget.render({ model, el, experimental: {} });
      if (cleanup) cleanups.push(cleanup);
    } catch (error) {
      el.textContent = `This widget could not be shown: ${error.message ?? error}`;
      console.error(error);
    }
  }

  async function start() {
    const states = new Map();
    const styles = new Set();
    for (const script of document.querySelectorAll(`script[type="${STATE}"]`)) {
      const { state: models, shared = [] } = JSON.parse(script.textContent);
      for (const [id, { state, model_module: module }] of Object.entries(models)) {
        if (module !== "anywidget") continue;
        for (const name of Object.keys(state)) state[name] = resolve(state[name], shared);
        states.set(id, state);
        if (state._css) styles.add(state._css);
      }
    }
    for (const css of styles) document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
    await Promise.all([...document.querySelectorAll(`script[type="${VIEW}"]`)].map((script) => show(script, states)));
  }

  // A page that goes into the browser's cache of pages is shown again as it is, so nothing ends there.
  window.addEventListener("pagehide", (event) => {
    if (!event.persisted) live.forEach((opened) => opened.then(({ cleanups }) => cleanups.forEach((end) => end()), () => {}));
  });
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", start) : start();
})();
