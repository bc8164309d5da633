// `node http.js server PORT`, or `node http.js client URL N`: N requests, eight at a time, checked.
const http = require('http');
const [, , role, where, count] = process.argv;
const body = 'node on towpath '.repeat(5000);
if (role === 'server') {
  http.createServer((request, response) => response.end(body)).listen(Number(where), '0.0.0.0');
} else {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  let left = Number(count), running = 0;
  const next = () => {
    while (running < 8 && left > 0) {
      left--; running++;
      http.get(where, { agent }, response => {
        const parts = [];
        response.on('data', data => parts.push(data));
        response.on('end', () => {
          if (Buffer.concat(parts).toString() !== body) throw new Error('wrong body');
          running--;
          next();
        });
      });
    }
    if (running === 0 && left === 0) { console.log('all fetched'); agent.destroy(); }
  };
  next();
}
