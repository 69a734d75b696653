/** Tells the language of code by the name of its file, or by the word behind the fence of a block. Pure. */

/** Names and endings of files, and words of fences, by the file of the language in `vendor/highlight/languages/`. */
const WORDS = new Map(
  [
    ["bash", "sh bash zsh shell console"],
    ["c", "c h"],
    ["cpp", "cc cpp cxx c++ hh hpp hxx"],
    ["csharp", "cs c# csharp"],
    ["css", "css"],
    ["diff", "diff patch"],
    ["dockerfile", "dockerfile containerfile"],
    ["go", "go golang"],
    ["ini", "ini toml cfg conf properties editorconfig"],
    ["java", "java"],
    ["javascript", "js mjs cjs jsx javascript"],
    ["json", "json jsonc jsonl webmanifest"],
    ["kotlin", "kt kts kotlin"],
    ["makefile", "mk make makefile gnumakefile"],
    ["markdown", "md markdown mkd"],
    ["php", "php"],
    ["python", "py pyi pyw python python3 pycon"],
    ["ruby", "rb ruby rake gemspec gemfile rakefile"],
    ["rust", "rs rust"],
    ["sql", "sql"],
    ["swift", "swift"],
    ["typescript", "ts mts cts tsx typescript"],
    ["xml", "xml html htm xhtml svg xsl plist vue"],
    ["yaml", "yml yaml"],
  ].flatMap(([language, words]) => words.split(" ").map((word) => [word, language])),
);

/** Languages that contain others, which have to be there first. */
const INSIDE = new Map([
  ["xml", ["javascript", "css"]],
  ["markdown", ["javascript", "css", "xml"]],
  ["php", ["javascript", "css", "xml"]],
  ["javascript", ["css", "xml"]],
  ["typescript", ["css", "xml"]],
]);

/**
 * Tells the language of a file.
 * @param {string} path
 * @returns {string|null} null for one that is not known.
 */
export function languageOfFile(path) {
  const name = (path.split(/[/\\]/).pop() ?? "").toLowerCase();
  const ending = /\.([^.]+)$/.exec(name)?.[1] ?? name;
  return WORDS.get(name) ?? WORDS.get(ending) ?? (/^(?:dockerfile|makefile)\./.test(name) ? name.split(".")[0] : null);
}

/**
 * Tells the language of a word behind a fence.
 * @param {string} word
 * @returns {string|null}
 */
export function languageOfWord(word) {
  return WORDS.get(word.toLowerCase()) ?? null;
}

/**
 * Returns the files that a language needs, itself last.
 * @param {string} language
 */
export function filesOf(language) {
  return [...(INSIDE.get(language) ?? []), language];
}
