use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A child process whose output is collected. Killed on drop, by its id.
#[derive(Debug)]
pub struct Process {
    line: String,
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

/// Output and status of a finished process.
#[derive(Debug)]
pub struct Output {
    line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    pub fn spawn(line: &[&str]) -> Self {
        // Reset SIGINT and SIGQUIT: tests started in the background of a script ignore them, and
        // programs would inherit that.
        let mut child = Command::new("env")
            .arg("--default-signal=INT,QUIT")
            .args(line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{line:?}: {error}"));
        let stdout = Collected::from(child.stdout.take().expect("piped"));
        let stderr = Collected::from(child.stderr.take().expect("piped"));
        Self { line: line.join(" "), child, stdout, stderr }
    }

    /// Returns the process id of the outermost program (`ip netns exec` replaces itself).
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the text written to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }

    /// Returns the text written to stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("waitpid").is_none()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).expect("kill");
    }

    /// Waits until the process ends. Panics with its output on a timeout.
    pub fn wait(mut self, limit: Duration) -> Output {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waitpid") {
                break status;
            }
            if Instant::now() > end {
                panic!(
                    "still running after {limit:?}: {}\nstdout: {}\nstderr: {}",
                    self.line,
                    self.stdout.so_far(),
                    self.stderr.so_far()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let line = std::mem::take(&mut self.line);
        Output { line, status, stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }

    /// Sends SIGTERM, and waits until the process ends.
    pub fn stop(self) -> Output {
        self.signal(rustix::process::Signal::TERM);
        self.wait(crate::PATIENCE)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if std::thread::panicking() {
                eprintln!(
                    "killed: {}\nstdout: {}\nstderr: {}",
                    self.line,
                    self.stdout.so_far(),
                    self.stderr.so_far()
                );
            }
            // Send SIGTERM first, because `towpath run` passes it on to its program.
            self.signal(rustix::process::Signal::TERM);
            for _ in 0..100 {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let killed = self.child.kill().and_then(|()| self.child.wait());
            if let Err(error) = killed {
                eprintln!("{}: {error}", self.line);
            }
        }
    }
}

impl Output {
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Panics with the output unless the process succeeded.
    pub fn ok(self) -> Self {
        assert!(
            self.success(),
            "{}: {}\nstdout: {}\nstderr: {}",
            self.line,
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the exit code. Panics if a signal killed the process.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{}: {}", self.line, self.status))
    }
}

/// Output of a pipe, collected by a thread.
#[derive(Debug)]
struct Collected {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                into.lock().expect("no panic holds it").extend_from_slice(&buffer[..n]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("no panic holds it")).into_owned()
    }

    /// Returns the whole output. Waits at most 10 s for the end of the pipe, because a grandchild
    /// may hold it open.
    fn finish(&mut self) -> String {
        let end = Instant::now() + Duration::from_secs(10);
        while self.reader.as_ref().is_some_and(|r| !r.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.so_far()
    }
}
