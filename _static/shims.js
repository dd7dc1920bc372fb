// A small repair for a static page: an output or table that is wider than the page can be scrolled
// with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
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
