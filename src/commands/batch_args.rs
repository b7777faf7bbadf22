//! The option for batch sizes.

use clap::Args;
use farcall_link::{BatchConfig, BatchSizing};

/// Sizes of batches.
#[derive(Debug, Clone, Args)]
pub struct BatchArgs {
    /// Also measure calls in batches of SIZE calls, or of the largest size with which 95 % of the calls take at most US
    /// microseconds. May be given several times. Only windows that fill a batch are measured.
    #[arg(long, value_name = "SIZE|auto:US", value_parser = batch_sizing)]
    batch: Vec<BatchSizing>,
}

impl BatchArgs {
    /// Returns the requested batch sizes.
    pub fn batches(&self) -> Vec<BatchSizing> {
        self.batch.clone()
    }
}

/// Parses a batch size, or the latency target for an automatic one.
fn batch_sizing(text: &str) -> Result<BatchSizing, String> {
    let number = |text: &str| text.parse::<u16>().map_err(|error| error.to_string());
    let config = match text.strip_prefix("auto:") {
        Some(us) => BatchConfig::automatic(number(us)?.into()),
        None => BatchConfig::fixed(number(text)?),
    };
    config.check().map(|()| config.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_size_or_a_latency() {
        assert_eq!(batch_sizing("16"), Ok(BatchSizing::Fixed(16)));
        assert_eq!(
            batch_sizing("auto:20"),
            Ok(BatchSizing::Automatic { latency_max_us: 20, tolerance_percent: 5 })
        );
        for wrong in ["0", "129", "auto:", "auto", "-1", "16us"] {
            assert!(batch_sizing(wrong).is_err(), "{wrong}");
        }
    }
}
