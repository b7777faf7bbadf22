//! The presets with the types of their paths, for clients whose paths are fixed at compile time.

/// Calls the macro `$then` with `$args` and with the variant, the name and the paths of every preset.
macro_rules! presets {
    ($then:ident $(($($args:tt)*))?) => {
        $then! {
            $(($($args)*))?
            ServerReply = "server-reply": farcall_rpc::ServerReply,
            L5 = "l5": farcall_rpc::WithDoorbellByte<farcall_rpc::ServerReply>,
            UcRpc = "uc-rpc": farcall_rpc::OverUc<farcall_rpc::ServerReply>,
            Herd = "herd": farcall_rpc::OverUc<farcall_rpc::DatagramReply>,
            UdRpc = "ud-rpc": farcall_rpc::OverUd<farcall_rpc::DatagramReply>,
            Fetch = "fetch": farcall_rpc::Fetch,
            WriteSend = "write-send": farcall_rpc::SendReply,
            SendWrite = "send-write": farcall_rpc::BySend<farcall_rpc::ServerReply>,
            SendSend = "send-send": farcall_rpc::BySend<farcall_rpc::SendReply>,
            RdmaMemcached = "rdma-memcached": farcall_rpc::BySend<farcall_rpc::NotifyThenFetch>,
            RfRpc = "rf-rpc": farcall_rpc::FetchThenReply,
        }
    };
}
pub(crate) use presets;
