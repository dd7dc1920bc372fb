// The slider: shows one of several figures. Without this script, the first one stays.
(() => {
  "use strict";

  function setUp() {
    document.querySelectorAll(".symgen-slider:not([data-ready])").forEach((slider) => {
      slider.dataset.ready = "";
      const handle = slider.querySelector("input");
      const caption = slider.querySelector("span");
      const figures = slider.querySelectorAll("img");
      const show = () => {
        figures.forEach((figure, i) => { figure.hidden = i !== handle.valueAsNumber; });
        caption.textContent = figures[handle.valueAsNumber].dataset.caption;
        handle.setAttribute("aria-valuetext", caption.textContent);
      };
      handle.addEventListener("input", show);
      show();
    });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", setUp);
  else setUp();
})();
