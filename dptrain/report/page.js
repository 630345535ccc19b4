"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");

  const compare = (a, b) => {
    const numbers = [a, b].map((cell) => Number.parseFloat(cell.dataset.sort));
    if (numbers.every((n) => !Number.isNaN(n))) return numbers[0] - numbers[1];
    return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  };

  // A cell without a value stays at the end in both directions.
  const sortBy = (head, index) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const cells = new Map(rows.map((row) => [row, row.cells[index]]));
    const full = rows.filter((row) => cells.get(row).textContent);
    const empty = rows.filter((row) => !cells.get(row).textContent);
    full.sort((a, b) => (up ? 1 : -1) * compare(cells.get(a), cells.get(b)));
    body.append(...full, ...empty);
  };
  heads.forEach((head, index) => head.firstElementChild.addEventListener("click", () => sortBy(head, index)));

  const texts = new Map(rows.map((row) => [row, Array.from(row.cells, (c) => c.textContent).join(" ").toLowerCase()]));
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row) => {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      left += row.hidden ? 0 : 1;
    });
    count.textContent = `${left} of ${rows.length} runs`;
  };
  filter.addEventListener("input", show);

  const all = document.getElementById("columns");
  all.hidden = !table.querySelector(".extra");
  all.addEventListener("click", () => {
    const on = table.classList.toggle("all");
    all.setAttribute("aria-pressed", String(on));
  });
  document.getElementById("tools").hidden = false;

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  theme.hidden = false;
  name();

  // On paper nothing can be opened.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
})();
