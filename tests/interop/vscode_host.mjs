// Runs VS Code's own host of agents until its input ends: vscode_host.mjs SERVER FOLDER PORT TOKEN
//
// The host keeps its sessions with @vscode/sqlite3, which is installed without its native part. In the host's process
// this file stands for that part, by the SQLite of Node.js.
import { fork } from "node:child_process";
import Module from "node:module";
import { DatabaseSync } from "node:sqlite";

function later(self, work, done) {
  let error = null;
  let result;
  try {
    result = work();
  } catch (thrown) {
    error = thrown;
  }
  if (done) setImmediate(() => done.call(self, error, result));
  return self;
}

class Database {
  constructor(path, ...rest) {
    this.real = new DatabaseSync(path);
    this.open = true;
    later(this, () => {}, rest.findLast((it) => typeof it === "function"));
  }
  exec(text, done) {
    return later(this, () => this.real.exec(text), done);
  }
  close(done) {
    return later(this, () => this.real.close(), done);
  }
  serialize(work) {
    return later(this, () => work?.());
  }
  configure() {}
}

class Statement {
  constructor(database, text, done) {
    this.real = database.real.prepare(text);
    this.bound = [];
    later(this, () => {}, done);
  }
  finalize(done) {
    return later(this, () => {}, done);
  }
}

for (const name of ["run", "get", "all", "bind"]) {
  Statement.prototype[name] = function (...values) {
    const done = typeof values.at(-1) === "function" ? values.pop() : undefined;
    const given = values.flat().map((it) => it ?? null);
    if (name === "bind") this.bound = given;
    const work = () => this.real[name](...(given.length ? given : this.bound));
    return later(this, name === "bind" ? () => {} : work, done);
  };
}

if (process.env.VSCODE_ESM_ENTRYPOINT) {
  const load = Module._load;
  Module._load = (name, ...rest) =>
    name.endsWith("vscode-sqlite3.node") ? { Database, Statement, Backup: class {} } : load(name, ...rest);
} else {
  const [, , server, folder, port, token] = process.argv;
  const locale = { locale: "en", userLocale: "en", osLocale: "en", resolvedLanguage: "en", availableLanguages: {} };
  const env = {
    ...process.env,
    NODE_OPTIONS: `--import=${import.meta.filename}`,
    VSCODE_ESM_ENTRYPOINT: "vs/platform/agentHost/node/agentHostMain",
    VSCODE_PIPE_LOGGING: "false",
    VSCODE_AGENT_HOST_LAUNCH_KIND: "vscode_cli",
    VSCODE_AGENT_HOST_HOST: "127.0.0.1",
    VSCODE_AGENT_HOST_PORT: port,
    VSCODE_AGENT_HOST_CONNECTION_TOKEN: token,
    VSCODE_NLS_CONFIG: JSON.stringify({ ...locale, defaultMessagesFile: `${server}/out/nls.messages.json` }),
  };
  const words = ["--type=agentHost", "--logsPath", `${folder}/logs`, "--user-data-dir", `${folder}/data`];
  const host = fork(`${server}/out/bootstrap-fork.js`, words, { cwd: server, env });
  host.on("exit", (code) => process.exit(code ?? 1));
  process.stdin.on("end", () => host.kill()).resume();
}
