//! Encoders on many machines, of which at most four run at a time.
//!
//! A permit is a lock on one of four slots. The number of the slot names a resource that one
//! encoder uses at a time: a license, a graphics card, or a folder. The fence distinguishes the
//! output of the permit's holder from that of an encoder that was paused, lost its permit, and
//! still writes.
//!
//! With `QUORLOCK_NODES=redis://a,redis://b,redis://c`:
//! `cargo run -p quorlock-client --example encoders -- DIRECTORY 10`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use quorlock_client::{Fence, Quorum};
use tokio::time::sleep;

/// The same in all programs: a program with a larger number would let that many encoders run.
const ENCODERS_MAX: usize = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().ok_or("usage: encoders DIRECTORY VIDEOS")?);
    let videos: u32 = args.next().ok_or("usage: encoders DIRECTORY VIDEOS")?.parse()?;
    let nodes = std::env::var("QUORLOCK_NODES")?;
    let quorum = Quorum::connect(nodes.split(',')).await?;
    let permits = quorum.semaphore("encoder", ENCODERS_MAX).wait(Duration::from_secs(60));

    for video in 0..videos {
        let mut permit = permits.acquire().await?;
        let (slot, fence) = (permit.slot().ok_or("a permit has a slot")?, permit.fence());
        // The length of a video is unknown.
        permit.renew();
        let file = tokio::select! {
            file = encode(&directory, slot, fence) => file?,
            // Another encoder may use the slot now, so this one stops.
            lost = permit.lost() => return Err(lost.into()),
        };
        println!("video {video}: slot {slot}, fence {fence}, {}", file.display());
        let _ = permit.release().await;
    }
    quorum.flush(Duration::from_secs(10)).await?;
    Ok(())
}

/// Encodes in the folder of the slot, which only this encoder uses while it has the permit.
async fn encode(directory: &Path, slot: usize, fence: Fence) -> io::Result<PathBuf> {
    let scratch = directory.join(format!("slot-{slot}"));
    fs::create_dir_all(&scratch)?;
    // No other permit of this slot has this fence, so a late encoder writes to another file.
    let file = scratch.join(format!("{fence}.mp4"));
    for _frame in 0..5 {
        sleep(Duration::from_millis(4)).await;
        fs::OpenOptions::new().create(true).append(true).open(&file)?;
    }
    let finished = directory.join(format!("{slot}-{fence}.mp4"));
    fs::rename(&file, &finished)?;
    Ok(finished)
}
