//! Machines: network namespaces, each with a link of its own to the sites and the database, which are in the namespace of
//! the test. Whoever is not root gets machines that share the loopback interface, behind a proxy each.
//!
//! What is made here is removed when this process ends, however it ends.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::proxy::Proxy;

/// Where sites and databases listen.
pub(crate) struct Hub {
    pub(crate) sites: String,
    pub(crate) databases: String,
    /// The third byte of every address, which keeps test runs apart; none without namespaces.
    net: Option<u8>,
    _keeper: Option<Child>,
}

impl Hub {
    /// The one of this process.
    pub(crate) fn get() -> &'static Self {
        static HUB: OnceLock<Hub> = OnceLock::new();
        HUB.get_or_init(|| {
            if ip(&["netns", "add", &probe()]).is_err() {
                eprintln!("no network namespaces without root: machines share the loopback interface");
                let local = || "127.0.0.1".to_owned();
                return Self { sites: local(), databases: local(), net: None, _keeper: None };
            }
            let net = (std::process::id() % 256) as u8;
            let (sites, databases) = (format!("198.19.{net}.1"), format!("198.19.{net}.2"));
            let script = "trap '' INT TERM HUP; read -r _
                ip address delete \"$1/32\" dev lo; ip address delete \"$2/32\" dev lo
                for one in $(ip netns list | grep -o \"^$3[0-9a-z]*\"); do ip netns delete \"$one\"; done";
            let mut keeper = Command::new("sh");
            keeper.args(["-c", script, "keeper", &sites, &databases, &prefix()]).stdin(Stdio::piped());
            keeper.stderr(Stdio::null());
            let keeper = keeper.spawn().unwrap();
            for address in [&sites, &databases] {
                ip(&["address", "add", &format!("{address}/32"), "dev", "lo"]).unwrap();
            }
            Self { sites, databases, net: Some(net), _keeper: Some(keeper) }
        })
    }
}

/// Which packets between a machine and the database are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Both,
    ToDatabase,
    FromDatabase,
}

impl Way {
    pub(crate) fn up(self) -> bool {
        self != Self::FromDatabase
    }

    pub(crate) fn down(self) -> bool {
        self != Self::ToDatabase
    }
}

/// One machine.
pub(crate) enum Machine {
    Namespace { name: String, link: String, near: String, far: String },
    Loopback(Proxy),
}

impl Machine {
    /// A machine that reaches the database at `port`.
    pub(crate) fn start(port: u16) -> Self {
        static NTH: AtomicU8 = AtomicU8::new(0);
        let hub = Hub::get();
        let Some(net) = hub.net else { return Self::Loopback(Proxy::start(&hub.databases, port)) };
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        assert!(nth < 32, "one network has room for 32 machines");
        let (name, link) = (format!("{}{nth}", prefix()), format!("cmt{:x}x{nth}", std::process::id()));
        let address = |host: u8| format!("198.18.{net}.{}", nth * 8 + host);
        let (near, far) = (address(2), address(4));
        let inside = |args: &[&str]| ip(&[&["-n", &name], args].concat()).unwrap();
        ip(&["netns", "add", &name]).unwrap();
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "up0", "netns", &name]).unwrap();
        for host in [1, 2] {
            ip(&["address", "add", &format!("{}/29", address(host)), "dev", &link]).unwrap();
        }
        ip(&["link", "set", &link, "up"]).unwrap();
        for host in [3, 4] {
            inside(&["address", "add", &format!("{}/29", address(host)), "dev", "up0"]);
        }
        inside(&["link", "set", "lo", "up"]);
        inside(&["link", "set", "up0", "up"]);
        inside(&["route", "add", &hub.sites, "via", &address(1), "src", &address(3)]);
        inside(&["route", "add", &hub.databases, "via", &near, "src", &far]);
        Self::Namespace { name, link, near, far }
    }

    /// The address at which it reaches the database that listens on `port`.
    pub(crate) fn database(&self, port: u16) -> String {
        match self {
            Self::Namespace { .. } => format!("{}:{port}", Hub::get().databases),
            Self::Loopback(proxy) => proxy.address(),
        }
    }

    /// The command as it runs on this machine.
    pub(crate) fn command(&self, program: &str) -> Command {
        match self {
            Self::Namespace { name, .. } => {
                let mut command = Command::new("/sbin/ip");
                command.args(["netns", "exec", name, program]);
                command
            }
            Self::Loopback(_) => Command::new(program),
        }
    }

    /// Drops what goes between this machine and the database, without a word to either.
    pub(crate) fn cut(&self, way: Way) {
        match self {
            Self::Namespace { name, link, near, far } => {
                // Packets for a hardware address that nobody has are dropped by whoever gets them.
                let nobody = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"];
                if way.up() {
                    let args = ["-n", name, "neighbour", "replace", near, "dev", "up0"];
                    ip(&[&args[..], &nobody].concat()).unwrap();
                }
                if way.down() {
                    let args = ["neighbour", "replace", far, "dev", link];
                    ip(&[&args[..], &nobody].concat()).unwrap();
                }
            }
            Self::Loopback(proxy) => proxy.hold(way),
        }
    }

    /// Lets everything through again.
    pub(crate) fn reconnect(&self) {
        match self {
            Self::Namespace { name, link, near, far } => {
                let _ = ip(&["-n", name, "neighbour", "delete", near, "dev", "up0"]);
                let _ = ip(&["neighbour", "delete", far, "dev", link]);
            }
            Self::Loopback(proxy) => proxy.let_through(),
        }
    }
}

/// The names of this process's namespaces begin with this.
fn prefix() -> String {
    format!("comity-{}-", std::process::id())
}

fn probe() -> String {
    format!("{}probe", prefix())
}

fn ip(args: &[&str]) -> Result<(), String> {
    let done = Command::new("/sbin/ip").args(args).output().map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("ip {args:?}: {}", String::from_utf8_lossy(&done.stderr))),
    }
}
