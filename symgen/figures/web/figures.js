// What readers can play with on a page without a kernel. It sets up every .symgen-explorer and every
// .symgen-slider once. Text of the data is only ever written as text.
(() => {
  "use strict";

  const SIGNS = { and: " ∧ ", or: " ∨ " };

  function number(x, sign = false) {
    const text = Math.abs(x).toFixed(2);
    if (Number(text) === 0) return text;
    return (x < 0 ? "−" : sign ? "+" : "") + text;
  }

  function make(tag, className, text) {
    const element = document.createElement(tag);
    element.className = className || "";
    if (text !== undefined) element.textContent = text;
    if (tag === "button") element.type = "button";
    return element;
  }

  function isActive([kind, members], state) {
    return kind === "and" ? (state & members) === members : (state & members) !== 0;
  }

  // One button per variable: on the image, in the text, or in a row.
  function makeStage(data, buttons) {
    const stage = make("div", "symgen-stage");
    if (/^data:image\/(png|jpeg);base64,/.test(data.image || "")) {
      const image = make("img");
      image.src = data.image;
      image.alt = "the image with its variables";
      stage.append(image);
      buttons.forEach((button, i) => {
        const [left, top, right, bottom] = data.boxes[i];
        button.className = "symgen-patch";
        button.textContent = i;
        const style = { left, top, width: right - left, height: bottom - top };
        for (const side in style) button.style[side] = `${style[side]}%`;
      });
      stage.classList.add("symgen-picture");
      stage.append(...buttons);
      return stage;
    }
    if (!data.text) {
      stage.append(...buttons);
      return stage;
    }
    let at = 0;
    const order = data.spans.map((span, i) => [...span, i]).sort((a, b) => a[0] - b[0]);
    for (const [start, end, i] of order) {
      stage.append([...data.text].slice(at, start).join(""), buttons[i]);
      at = end;
    }
    stage.append([...data.text].slice(at).join(""));
    return stage;
  }

  function makeBar(name, className, low, high) {
    const row = make("div", `symgen-bar ${className}`);
    const track = make("div", "symgen-track");
    const fill = make("div", "symgen-fill");
    const zero = make("div", "symgen-zero");
    const value = make("span", "symgen-value");
    const place = (x) => (100 * (x - low)) / (high - low || 1);
    zero.style.left = `${place(0)}%`;
    track.append(fill, zero);
    row.append(make("span", "symgen-name", name), track, value);
    const show = (x) => {
      fill.style.left = `${place(Math.min(0, x))}%`;
      fill.style.width = `${place(Math.max(0, x)) - place(Math.min(0, x))}%`;
      value.textContent = number(x);
    };
    return [row, show];
  }

  // The explorer: switch the variables of a sample on and off, and see v, d and the active terms.
  function setUpExplorer(root) {
    const data = JSON.parse(root.dataset.explorer);
    const { names, v, d, terms } = data;
    const all = v.length - 1;
    let state = all;

    const buttons = names.map((name, i) => {
      const button = make("button", "symgen-word", name);
      if (data.image) button.setAttribute("aria-label", `variable ${name}`);
      button.addEventListener("click", () => show(state ^ (1 << i)));
      return button;
    });
    const mark = (members) => buttons.forEach((button, i) =>
      button.classList.toggle("symgen-marked", Boolean((members >> i) & 1)));

    const low = Math.min(0, ...v, ...d), high = Math.max(0, ...v, ...d);
    const [networkBar, showNetwork] = makeBar("network v", "symgen-network", low, high);
    const [modelBar, showModel] = makeBar("logical model d", "symgen-model", low, high);
    const bars = make("div", "symgen-bars");
    bars.setAttribute("aria-live", "polite");
    bars.append(networkBar, modelBar);

    const count = make("span", "symgen-count");
    const tools = make("div", "symgen-tools");
    for (const [text, target] of [["all on", all], ["all off", 0]]) {
      const button = make("button", "symgen-tool", text);
      button.addEventListener("click", () => show(target));
      tools.append(button);
    }
    tools.append(count);

    const line = (className, text, effect) => {
      const item = make("li");
      const row = make(className ? "button" : "div", `symgen-term ${className}`);
      row.append(make("span", "symgen-members", text), make("span", "symgen-effect", effect));
      item.append(row);
      return item;
    };
    const rows = terms.map(([kind, members, effect]) => {
      const parts = names.filter((_, i) => (members >> i) & 1);
      const item = line(`symgen-${kind}`, parts.join(SIGNS[kind]), number(effect, true));
      const row = item.firstChild;
      row.setAttribute("aria-label", `${kind.toUpperCase()} of ${parts.join(", ")}: ${number(effect, true)}`);
      for (const event of ["mouseenter", "focus", "click"]) row.addEventListener(event, () => mark(members));
      for (const event of ["mouseleave", "blur"]) row.addEventListener(event, () => mark(0));
      return item;
    });
    const base = line("", "everything masked", number(d[0], true));
    const rest = line("", "other terms", "");
    const list = make("ul", "symgen-terms");
    list.append(base, ...rows, rest);

    function show(next) {
      state = next;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(Boolean((state >> i) & 1))));
      showNetwork(v[state]);
      showModel(d[state]);
      let sum = d[0];
      terms.forEach((term, k) => {
        const active = isActive(term, state);
        rows[k].hidden = !active;
        if (active) sum += term[2];
      });
      const left = d[state] - sum;
      rest.hidden = Math.abs(left) < 0.005;
      rest.querySelector(".symgen-effect").textContent = number(left, true);
      const present = names.filter((_, i) => (state >> i) & 1).length;
      count.textContent = `${present} of ${names.length} present`;
      mark(0);
    }

    const side = make("div", "symgen-side");
    side.append(bars, tools, make("p", "symgen-title", "Active terms (AND ∧, OR ∨); their sum is d:"), list);
    root.replaceChildren(makeStage(data, buttons), side);
    show(all);
    // Paper shows the first state.
    let before = all;
    window.addEventListener("beforeprint", () => { before = state; show(all); });
    window.addEventListener("afterprint", () => show(before));
  }

  // The slider: one figure at a time, chosen by a slider or from a menu.
  function setUpSlider(root) {
    const isOwn = (image) => image.classList.contains("symgen-own");
    const images = [...root.querySelectorAll("img")];
    const pages = images.filter((image) => !isOwn(image));
    // The same figures, each with a scale of its own.
    const own = images.filter(isOwn);
    const captions = pages.map((image) => image.dataset.caption);
    const start = pages.findIndex((image) => image.classList.contains("symgen-first"));

    const isMenu = "menu" in root.dataset;
    const control = make(isMenu ? "select" : "input", "symgen-control");
    if (isMenu) {
      captions.forEach((caption, i) => {
        const option = make("option", "", caption);
        option.value = i;
        control.append(option);
      });
    } else {
      control.type = "range";
      control.min = 0;
      control.max = pages.length - 1;
    }
    control.value = Math.max(start, 0);
    const label = make("label", "symgen-label");
    label.append(make("span", "", root.dataset.label || "figure"), control);
    const shown = make("span", "symgen-shown");
    const tools = make("div", "symgen-tools");
    tools.append(label);
    if (!isMenu) tools.append(shown);
    const button = make("button", "symgen-tool", "own scale");
    button.setAttribute("aria-pressed", "false");
    if (own.length) tools.append(button);

    function show() {
      const i = Number(control.value);
      const free = button.getAttribute("aria-pressed") === "true";
      for (const image of images) image.hidden = image !== (free ? own : pages)[i];
      shown.textContent = captions[i];
      if (!isMenu) control.setAttribute("aria-valuetext", captions[i]);
    }
    control.addEventListener("input", show);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
      show();
    });
    root.prepend(tools);
    show();
  }

  function setUpAll() {
    for (const [name, setUp] of [["explorer", setUpExplorer], ["slider", setUpSlider]]) {
      for (const root of document.querySelectorAll(`.symgen-${name}:not([data-ready])`)) {
        root.dataset.ready = "";
        setUp(root);
      }
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", setUpAll);
  else setUpAll();
})();
