"use strict";
(() => {
  const form = document.getElementById("filter");
  const words = document.getElementById("words");
  const failed = document.getElementById("failed");
  const count = document.getElementById("count");
  const all = [...document.querySelectorAll("details.scenario")].map((box) => [box, box.textContent.toLowerCase()]);
  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [box, text] of all) {
      const fits = wanted.every((word) => text.includes(word)) && (!failed.checked || box.classList.contains("failing"));
      box.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${all.length} scenarios`;
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", show);
  show();
})();
