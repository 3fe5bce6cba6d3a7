(seed) => {
  core.EPISODE_MAX_TIME = 2147483647;
  Math.seedrandom(seed);
  core.startEpisodeReal();
  core.startEpisode = () => {};
}
