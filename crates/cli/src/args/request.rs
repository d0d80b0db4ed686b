//! What requests are sent with, as `comity fetch` takes it.

use std::path::PathBuf;

use clap::Args as Group;
use comity::request::Typed;

/// What requests are sent with: headers, cookies, credentials, timeouts, proxy
#[derive(Clone, Default, Group)]
pub(crate) struct Request {
    /// Send this header, such as 'Accept-Language: de'. ${NAME} in it is the variable NAME, ${file:PATH} what a file
    /// holds: in single quotes, secrets stay out of the list of processes
    #[arg(long, short = 'H', value_name = "HEADER", help_heading = "Requests")]
    header: Vec<String>,
    /// Send these cookies to the hosts you list, such as 'session=${SESSION}'
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Requests")]
    cookie: Vec<String>,
    /// Send the cookies of this file, as browsers and curl write it (Netscape format)
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    cookies: Option<PathBuf>,
    /// Keep the cookies that sites set in this file, and send them back
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    cookie_jar: Option<PathBuf>,
    /// Log in with the user:password in this variable
    #[arg(long, value_name = "NAME", help_heading = "Requests", group = "auth")]
    auth_basic_env: Option<String>,
    /// Log in with the user:password in this file
    #[arg(long, value_name = "FILE", help_heading = "Requests", group = "auth")]
    auth_basic_file: Option<PathBuf>,
    /// Log in with the token in this variable (Authorization: Bearer)
    #[arg(long, value_name = "NAME", help_heading = "Requests", group = "auth")]
    auth_bearer_env: Option<String>,
    /// Log in with the token in this file
    #[arg(long, value_name = "FILE", help_heading = "Requests", group = "auth")]
    auth_bearer_file: Option<PathBuf>,
    /// The user agent; robots.txt is read for its first word [default: Comity/0.1]
    #[arg(long, short = 'A', value_name = "NAME", help_heading = "Requests")]
    user_agent: Option<String>,
    /// How long a request may take, such as 20s [default: 30s until an answer begins, 5m in all]
    #[arg(long, value_name = "DURATION", help_heading = "Requests")]
    timeout: Option<String>,
    /// Go through this proxy: http://, https://, socks5:// or socks5h://HOST:PORT, or none [default: as http_proxy,
    /// https_proxy and all_proxy say]
    #[arg(long, value_name = "URL", help_heading = "Requests")]
    proxy: Option<String>,
    /// Do not check the certificate of this one host
    #[arg(long, value_name = "HOST", help_heading = "Requests")]
    insecure: Vec<String>,
}

/// What was typed may be a secret.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Request {
    /// As it was typed.
    pub(crate) fn typed(&self) -> Typed {
        Typed {
            headers: self.header.clone(),
            cookies: self.cookie.clone(),
            cookies_file: self.cookies.clone(),
            cookie_jar: self.cookie_jar.clone(),
            basic_env: self.auth_basic_env.clone(),
            basic_file: self.auth_basic_file.clone(),
            bearer_env: self.auth_bearer_env.clone(),
            bearer_file: self.auth_bearer_file.clone(),
            user_agent: self.user_agent.clone(),
            timeout: self.timeout.clone(),
            proxy: self.proxy.clone(),
            insecure: self.insecure.clone(),
        }
    }
}
