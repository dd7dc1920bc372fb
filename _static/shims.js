// Small repairs for a static page. Loaded before MathJax and the widgets.

// 1. Labels of widgets are typeset through the interface of MathJax 2, but the page has MathJax 3,
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

// 2. Play buttons redraw their icons: Font Awesome must put an icon into its element, not replace it.
window.FontAwesomeConfig = { autoReplaceSvg: "nest" };

document.addEventListener("DOMContentLoaded", () => {
  // 3. The handle of a slider gets the name of its label, for screen readers.
  const name = () => {
    document.querySelectorAll(".noUi-handle:not([aria-label])").forEach((handle) => {
      const label = handle.closest(".jupyter-widgets")?.querySelector(".widget-label");
      handle.setAttribute("aria-label", label?.textContent.trim() || "figure");
    });
  };
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });

  // 4. An output or table that is wider than the page can be scrolled with the keyboard.
  const boxes = document.querySelectorAll(
    ".cell_output, .pst-scrollable-table-container, table.results, div.claim",
  );
  const reach = (box) => {
    const wide = box.scrollWidth > box.clientWidth;
    if (wide === box.hasAttribute("tabindex")) return;
    if (wide) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  };
  const seen = new ResizeObserver((changes) => changes.forEach(({ target }) => reach(target)));
  boxes.forEach((box) => seen.observe(box));
  window.addEventListener("load", () => boxes.forEach(reach));
});
