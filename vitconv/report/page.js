"use strict";
// Click on a column's title to sort by it: numbers from the largest, text from A, and the other way round again.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const numeric = head.classList.contains("right");
    const value = (row) => {
      const text = row.cells[column].textContent.trim();
      if (!numeric) return text;
      // What is not finite is worse than any number, what is not there less than any.
      if (text === "NaN" || text === "inf") return Infinity;
      const number = parseFloat(text.replace(/ /g, ""));
      return Number.isNaN(number) ? -Infinity : number;
    };
    head.tabIndex = 0;
    const sort = () => {
      const descending = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
      const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
      rows.sort(([x], [y]) => (numeric ? (x === y ? 0 : x < y ? -1 : 1) : x.localeCompare(y, "en", { numeric: true })));
      if (descending) rows.reverse();
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
