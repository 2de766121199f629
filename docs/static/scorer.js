// The order of the site's search: each word of the query that is in the title counts, and pages that explain come
// before cards and API. Titles of a page and of its section are in `title`; the numbers below are Sphinx' own.
var Scorer = {
  score: ([page, title, , , score]) => {
    const stems = (text) => splitQuery(text.toLowerCase()).map((word) => new Stemmer().stemWord(word));
    const query = stems(new URLSearchParams(location.search).get("q"));
    const found = new Set(stems(title).filter((word) => query.includes(word)));
    return score + 10 * found.size - (page.includes("/") ? 5 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
