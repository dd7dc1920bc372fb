// What widgets expect of a page and a static page lacks, and names. Loaded before both.

// 1. Labels of widgets are typeset through the interface of MathJax 2; the page has MathJax 3,
//    which may be assigned before or after this script runs.
(function () {
  function typeset(job) {
    const node = job[job.length - 1];
    const mathjax = window.MathJax;
    if (!mathjax || !mathjax.startup || !mathjax.startup.promise) return;
    mathjax.startup.promise = mathjax.startup.promise.then(() => mathjax.typesetPromise([node]));
  }
  function withHub(mathjax) {
    if (mathjax && !mathjax.Hub) mathjax.Hub = { Queue: (...jobs) => jobs.forEach(typeset) };
    return mathjax;
  }
  let current = withHub(window.MathJax);
  Object.defineProperty(window, "MathJax", {
    configurable: true,
    get: () => current,
    set: (value) => { current = withHub(value); },
  });
})();

// 2. The buttons of a Play widget redraw their icons, which Font Awesome must nest, not replace.
window.FontAwesomeConfig = { autoReplaceSvg: "nest" };

// 3. The handle of a slider has a role and no name: it takes that of the label beside it.
document.addEventListener("DOMContentLoaded", () => {
  const name = () => {
    document.querySelectorAll(".noUi-handle:not([aria-label])").forEach((handle) => {
      const label = handle.closest(".jupyter-widgets")?.querySelector(".widget-label");
      handle.setAttribute("aria-label", label?.textContent.trim() || "figure");
    });
  };
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
});

// 4. An output or a table wider than the page is moved in its box, and so by the keyboard, too.
document.addEventListener("DOMContentLoaded", () => {
  const boxes = document.querySelectorAll(".cell_output, .pst-scrollable-table-container");
  const reach = (box) => {
    const wide = box.scrollWidth > box.clientWidth;
    if (wide === box.hasAttribute("tabindex")) return;
    const said = { tabindex: "0", role: "group", "aria-label": "wider than the page" };
    for (const [key, value] of Object.entries(said)) {
      if (wide) box.setAttribute(key, value);
      else box.removeAttribute(key);
    }
  };
  const seen = new ResizeObserver((changes) => changes.forEach(({ target }) => reach(target)));
  boxes.forEach((box) => seen.observe(box));
  window.addEventListener("load", () => boxes.forEach(reach));
});

// 5. A formula within a line that is longer than the line is moved in its box.
window.addEventListener("load", () => {
  const mark = () => document.querySelectorAll(".bd-article span.math").forEach((formula) => {
    const inner = formula.querySelector("mjx-container:not([display])");
    const line = formula.closest("p, li, td, dd, div");
    if (!inner || !line) return;
    formula.classList.toggle("long", inner.getBoundingClientRect().width > line.clientWidth);
  });
  const typeset = window.MathJax?.startup?.promise || Promise.resolve();
  typeset.then(() => {
    mark();
    window.addEventListener("resize", mark);
    document.addEventListener("toggle", mark, true);
  });
});

// 6. A figure is never so narrow that its letters cannot be read: its class says from which width on.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("img[class*='wide-']").forEach((figure) => {
    figure.style.minWidth = `${/wide-(\d+)/.exec(figure.className)[1]}px`;
  });
});
