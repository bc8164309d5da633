// A cluster of Node.js: the primary accepts and hands connections out, or the workers share the listener.
const cluster = require('cluster');
const http = require('http');

const port = Number(process.argv[2]);
if (cluster.isPrimary) {
  cluster.schedulingPolicy = process.argv[3] === 'shared' ? cluster.SCHED_NONE : cluster.SCHED_RR;
  let listening = 0;
  for (let n = 0; n < 3; n++) cluster.fork();
  cluster.on('listening', async () => {
    if (++listening < 3) return;
    const pids = new Set();
    for (let n = 0; n < 60; n++) {
      const agent = new http.Agent();
      pids.add(await new Promise((done, fail) => {
        http.get({ port, host: '127.0.0.1', agent }, (answer) => {
          let text = '';
          answer.on('data', (part) => { text += part; });
          answer.on('end', () => done(text));
        }).on('error', fail);
      }));
    }
    console.log('answered', pids.size > 0);
    for (const worker of Object.values(cluster.workers)) worker.kill();
  });
} else {
  http.createServer((_, answer) => answer.end(String(process.pid))).listen(port, '127.0.0.1');
}
