//! The contract between the Holdfast operator and its agents.

/// The protobuf package of the agent's gRPC service.
pub const PACKAGE: &str = "holdfast.agent.v1";
