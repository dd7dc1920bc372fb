// Small repairs for a static page.
document.addEventListener("DOMContentLoaded", () => {
  // An output or table that is wider than the page can be scrolled with the keyboard.
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

  // A browser lets no page of a file read other files, so the search shows titles alone there.
  const results = document.getElementById("search-results");
  if (results && location.protocol === "file:") {
    const note = document.createElement("p");
    note.className = "search-note";
    note.textContent = "Excerpts of pages need a server. In the folder of this site, run: "
      + "python -m http.server, and open http://localhost:8000.";
    results.before(note);
  }
});
